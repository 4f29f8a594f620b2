"""Programs that end, fork or forget the wheel while the GPU works, and graphs that outlive what they were made of.

`tests/device/test_ends.py` runs each in a process of its own, with a folder in `sys.argv[1]`.
"""

HEAD = """\
import gc, os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import torch
import aot_gemm

def operands(m=8, n=256, k=16384, device="cuda", dtype=torch.bfloat16):
    return torch.randn(m, k, device=device).to(dtype), torch.randn(n, k, device=device).to(dtype)

def check(result, x, weight):
    torch.cuda.synchronize(result.device)
    expected = x.float() @ weight.float().T
    worst = float((result.float() - expected).abs().max() / expected.abs().max())
    assert worst < 0.02, worst

def work(count=500):
    "Leave a tenth of a second of sleep in front of products that nobody waits for."
    x, weight = operands()
    torch.cuda._sleep(200_000_000)
    return [aot_gemm.linear(x, weight) for _ in range(count)]
"""

ENDS = {
    "a stream that works when the program ends": "kept = work()",
    "a side stream that works": "with torch.cuda.stream(torch.cuda.Stream()):\n    kept = work()",
    "operands that are gone before the product runs": """
x, weight = operands()
torch.cuda._sleep(200_000_000)
result = aot_gemm.linear(x, weight)
del x, weight
gc.collect()
del result
""",
    "sys.exit with work under way": "kept = work()\nsys.exit(0)",
    "a daemon thread that launches while the interpreter ends": """
x, weight = operands(k=1024)
out = aot_gemm.linear(x, weight)
def forever():
    while True:
        aot_gemm.linear(x, weight, out=out)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
""",
    "threads that are daemons, each with a stream": """
def forever():  # with an `out`: torch aborts where such a thread allocates, or frees, while the interpreter ends
    with torch.cuda.stream(torch.cuda.Stream()):
        x, weight = operands(k=1024)
        out = aot_gemm.linear(x, weight)
        while True:
            aot_gemm.linear(x, weight, out=out)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(1)
""",
    "a call at exit": """
import atexit
x, weight = operands()
atexit.register(lambda: check(aot_gemm.linear(x, weight), x, weight))
""",
    "a call in a destructor of a module's variable": """
class Last:
    def __init__(self):
        self.operands = operands()
        self.linear = aot_gemm.linear
    def __del__(self):
        try:
            self.linear(*self.operands)
        except Exception:
            pass  # whatever is gone by then: it may fail, and does not end the process
last = Last()
last.itself = last
""",
    "constants that live to the end": """
x, weight = operands()
held = aot_gemm.constant(weight)
kept = aot_gemm.linear(x, held)
""",
}

FORGETS = {
    "the package is deleted, collected and imported again": """
x, weight = operands()
check(aot_gemm.linear(x, weight), x, weight)
kept = work(50)
for name in [name for name in sys.modules if name.partition(".")[0] == "aot_gemm"]:
    del sys.modules[name]
del aot_gemm
gc.collect()
import aot_gemm
check(aot_gemm.linear(x, weight), x, weight)
""",
    "the library is opened, used and closed by another user while products run": """
import ctypes, _ctypes
from pathlib import Path
path = next(Path(aot_gemm.__file__).parent.rglob("libaot_gemm.so.*"))
x, weight = operands()
torch.cuda._sleep(200_000_000)
kept = [aot_gemm.linear(x, weight) for _ in range(50)]
for _ in range(3):
    own = ctypes.CDLL(str(path))
    own.aot_gemm_abi_version
    _ctypes.dlclose(own._handle)
for result in kept:
    check(result, x, weight)
check(aot_gemm.linear(x, weight), x, weight)
""",
    "all memory of torch is given back between calls": """
x, weight = operands()
for _ in range(20):
    result = aot_gemm.linear(x, weight)
    check(result, x, weight)
    del result
    gc.collect()
    torch.cuda.empty_cache()
""",
    "a forked child that asks gets an error and no result": """
x, weight = operands()
result = aot_gemm.linear(x, weight)
check(result, x, weight)
child = os.fork()
if child == 0:
    refused = 0
    for keywords in ({}, {"out": result}):
        try:
            aot_gemm.linear(x, weight, **keywords)
        except (aot_gemm.AotGemmError, RuntimeError):
            refused += 1
    os._exit(40 + refused)
deadline = time.monotonic() + 60
while True:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    assert time.monotonic() < deadline, "the child hangs"
    time.sleep(0.05)
assert os.waitstatus_to_exitcode(status) == 42, os.waitstatus_to_exitcode(status)
check(aot_gemm.linear(x, weight), x, weight)
""",
    "thirty thousand calls more do not grow what a process holds": """
import resource
x, weight = operands(8, 256, 1024)
def loop(count):
    for i in range(count):
        m = 1 + i % 97
        aot_gemm.linear(x[:1].expand(m, 1024).contiguous(), weight)
        aot_gemm.plan(m, 256, 1024)
    torch.cuda.synchronize()
aot_gemm.preload()
loop(3000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
free = torch.cuda.mem_get_info()[0]
loop(30000)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 4096, f"{grown} KiB more after 30,000 calls"
assert free - torch.cuda.mem_get_info()[0] < 8 << 20
""",
}

GRAPHS = {
    "the first product of a process is captured": """
x, weight = operands()
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    result = aot_gemm.linear(x, weight)
for _ in range(3):
    x.normal_()
    graph.replay()
    check(result, x, weight)
""",
    "captured beside a thread that computes without": """
x, weight = operands()
other = operands(300, 520, 264)
stop, failed = threading.Event(), []
def eager():
    with torch.cuda.stream(torch.cuda.Stream()):
        while not stop.is_set():
            try:
                aot_gemm.linear(*other)
            except Exception as error:
                failed.append(error)
                return
aot_gemm.linear(*other)
torch.cuda.synchronize()
thread = threading.Thread(target=eager)
thread.start()
for mode in ("thread_local", "relaxed") * 10:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        result = aot_gemm.linear(x, weight)
    graph.replay()
stop.set()
thread.join()
assert not failed, failed
check(result, x, weight)
check(aot_gemm.linear(*other), *other)
""",
    "a split product's workspace stays the graph's": """
x, weight = operands()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = aot_gemm.linear(x, weight)
for i in range(50):
    noise = [torch.full((1 << 18,), float("nan"), device="cuda") for _ in range(8)]
    aot_gemm.linear(*operands())
    x.normal_()
    result.zero_()
    graph.replay()
    check(result, x, weight)
    del noise
""",
    "a graph on another stream, and one inside of another pool": """
x, weight = operands()
first = torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    hidden = aot_gemm.linear(x, weight)
second = torch.cuda.CUDAGraph()
after = torch.randn(512, 256, device="cuda").bfloat16()
with torch.cuda.graph(second, pool=first.pool()):
    result = aot_gemm.linear(hidden, after)
side = torch.cuda.Stream()
for _ in range(20):
    x.normal_()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first.replay()
        second.replay()
    torch.cuda.current_stream().wait_stream(side)
    check(hidden, x, weight)
    check(result, hidden, after)
""",
    "the graph is gone before the process, with a replay under way": """
x, weight = operands()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(50):
        result = aot_gemm.linear(x, weight)
torch.cuda._sleep(200_000_000)
graph.replay()
del graph
gc.collect()
check(result, x, weight)
""",
    "a capture that fails leaves the library whole": """
x, weight = operands()
for _ in range(3):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            aot_gemm.linear(x, weight)
            torch.cuda.synchronize()  # not permitted under capture
    except Exception:
        pass
    else:
        raise AssertionError("the capture was not ended")
    del graph
    try:
        torch.cuda.synchronize()
        torch.mm(x, weight.T)
    except Exception as error:
        print(error)
        sys.exit(77)  # torch itself is not whole
    check(aot_gemm.linear(x, weight), x, weight)
""",
    "make_graphed_callables of a patched model, trained": """
import aot_gemm.torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.GELU(), torch.nn.Linear(512, 1024)).cuda().bfloat16()
assert aot_gemm.torch.patch(model).swapped == ("0", "2")
x = torch.randn(64, 1024, device="cuda").bfloat16().requires_grad_()
graphed = torch.cuda.make_graphed_callables(model, (x,))
for _ in range(3):
    y = torch.randn(64, 1024, device="cuda").bfloat16().requires_grad_()
    graphed(y).float().square().mean().backward()
    got = y.grad.clone()
    y.grad = None
    torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear(y, model[0].weight, model[0].bias)),
                               model[2].weight, model[2].bias).float().square().mean().backward()
    assert float((got.float() - y.grad.float()).norm() / y.grad.float().norm()) < 0.05
""",
}

COMPILE = """
import torch._inductor
import aot_gemm.torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(1024, 4096, bias=False), torch.nn.Linear(4096, 1024)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))
torch.manual_seed(0)
model, x = Block().cuda().bfloat16(), torch.randn(16, 1024, device="cuda").bfloat16()
with torch.no_grad():
    program = aot_gemm.torch.fuse(torch.export.export(model, (x,)))
    assert "aot_gemm" in program.graph_module.code
    path = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1] + "/model.pt2")
    torch.save((x, model(x)), sys.argv[1] + "/expected.pt")
"""
ALONE = """
import subprocess
import torch._inductor
path = sys.argv[1] + "/alone.pt2"
with torch.no_grad():
    program = torch.export.export(torch.nn.Linear(64, 64).cuda(), (torch.randn(16, 64, device="cuda"),))
    torch._inductor.aoti_compile_and_package(program, package_path=path)
load = f"import torch, torch._inductor; torch._inductor.aoti_load_package({path!r})(torch.randn(16, 64, device='cuda'))"
done = subprocess.run([sys.executable, "-c", load], capture_output=True, check=False)
if done.returncode:
    print(f"a package of one Linear ends the process that loads it with {done.returncode}")
    sys.exit(77)
"""
RUN = """
import torch._inductor
import aot_gemm.torch
for device in range(torch.cuda.device_count()):
    x, expected = (each.to(f"cuda:{device}") for each in torch.load(sys.argv[1] + "/expected.pt", map_location="cpu"))
    loaded = torch._inductor.aoti_load_package(sys.argv[1] + "/model.pt2", device_index=device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        got = loaded(x)
    torch.cuda.synchronize(device)
    assert got.device.index == device
    assert float((got.float() - expected.float()).norm() / expected.float().norm()) < 0.02
    del loaded
    gc.collect()
"""
WITHOUT = """
import torch._inductor
del aot_gemm
try:
    loaded = torch._inductor.aoti_load_package(sys.argv[1] + "/model.pt2")
    loaded(torch.load(sys.argv[1] + "/expected.pt")[0])
except RuntimeError as error:
    assert "aot_gemm" in str(error), error
else:
    raise AssertionError("a program whose operators are not there gave a result")
"""

INTERRUPTED = """
import signal
kept = work()
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGINT)
"""
PROGRAMS = {**ENDS, **FORGETS, **GRAPHS, "an interrupt with work under way": INTERRUPTED}
