"""The installed wheel against a float32 reference, on the GPU."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.device.reference import TOLERANCE, poisoned, randn, random_shape, random_shapes, relative_error

torch = pytest.importorskip("torch")
aot_gemm = pytest.importorskip("aot_gemm")

DTYPES = [torch.bfloat16, torch.float16]


def tolerance(dtype):
    return TOLERANCE[str(dtype).removeprefix("torch.")]


def matrix(rng, rows, columns, dtype):
    """Make a matrix that is row- or column-major, packed or with padding, as the generator says."""
    padding = rng.choice([0, 8, 3])
    if rng.random() < 0.5:
        return randn(rows, columns + padding, dtype=dtype)[:, :columns]
    return randn(columns, rows + padding, dtype=dtype)[:, :rows].t()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_on_500_random_shapes(dtype):
    worst = (0.0, None)
    for m, n, k in random_shapes(seed=1, count=500):
        x, weight, out = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype), poisoned(m, n, dtype=dtype)
        assert aot_gemm.linear(x, weight, out=out) is out
        error = relative_error(out, x, weight.t())
        assert error <= tolerance(dtype), (m, n, k, aot_gemm.plan(m, n, k, str(dtype).removeprefix("torch.")))
        worst = max(worst, (error, (m, n, k)))
    print(f"\nlinear, {dtype}: worst relative error {worst[0]:.2e} at (m, n, k) = {worst[1]}")


CALLS = """
import torch
import aot_gemm
from tests.device.reference import randn, random_shapes

for dtype in (torch.bfloat16, torch.float16):
    for m, n, k in random_shapes(seed=2, count=100):
        aot_gemm.linear(randn(m, k, dtype=dtype), randn(n, k, dtype=dtype))
torch.cuda.synchronize()
"""


def _files(folder):
    """Return the size and the time of each file, but of what Python compiles of a module."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "__pycache__"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def test_calls_write_no_files(tmp_path):
    """In a process with folders of its own: others write to a machine's folders at any time."""
    package = Path(aot_gemm.__file__).parent
    before = _files(package)
    own = {name: str(tmp_path / name) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")}
    for folder in own.values():
        Path(folder).mkdir()
    environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-B", "-c", CALLS], env=environment, cwd=own["HOME"], check=True)
    assert _files(tmp_path) == {}
    assert _files(package) == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmul_on_500_random_shapes_and_layouts(dtype):
    rng = random.Random(2)
    worst = (0.0, None)
    for i, (m, n, k) in enumerate(random_shapes(seed=3, count=500)):
        a, b = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
        out = None
        if i % 3:
            out = matrix(rng, m, n, dtype)
            out.fill_(float("nan"))
        result = aot_gemm.matmul(a, b, out=out)
        error = relative_error(result, a, b)
        assert error <= tolerance(dtype), (m, n, k, a.stride(), b.stride(), result.stride())
        worst = max(worst, (error, (m, n, k)))
    print(f"\nmatmul, {dtype}: worst relative error {worst[0]:.2e} at (m, n, k) = {worst[1]}")


def test_every_m_at_bucket_edges():
    n, k = 4096, 4096
    edges = [1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    weight = randn(n, k, dtype=torch.bfloat16)
    for m in sorted({max(edge + step, 1) for edge in edges for step in (-1, 0, 1)}):
        x = randn(m, k, dtype=torch.bfloat16)
        assert relative_error(aot_gemm.linear(x, weight), x, weight.t()) <= 1e-2, m


def test_same_semantics_as_torch():
    a, b = randn(2, 3, 40, 64, dtype=torch.float16), randn(64, 48, dtype=torch.float16)
    cases = [
        (a, b),
        (a[0, 0], b),
        (a[0, 0, 0], b),
        (a[0, 0], b[:, 0]),
        (a[0, 0, 0], b[:, 0]),
        (a, b[:, 0].contiguous()),
        (a.transpose(0, 2), b),
        (a.transpose(1, 2), b[:, 0]),
        (a[:, 1:], b),
        (a[:, :, ::2], b),
        (a[:, :1].expand(2, 5, 40, 64), b),
        (a.permute(2, 0, 1, 3)[3:, :, 1:], b),
    ]
    for left, right in cases:
        result, expected = aot_gemm.matmul(left, right), torch.matmul(left, right)
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected, rtol=5e-3, atol=5e-3)


def test_empty_problems():
    zero = aot_gemm.linear(
        randn(5, 0, dtype=torch.bfloat16), randn(16, 0, dtype=torch.bfloat16), out=poisoned(5, 16, dtype=torch.bfloat16)
    )
    assert zero.eq(0).all()
    assert aot_gemm.linear(randn(0, 64, dtype=torch.bfloat16), randn(16, 64, dtype=torch.bfloat16)).shape == (0, 16)


def test_padding_of_out_is_left_alone():
    whole = poisoned(100, 264, dtype=torch.bfloat16)
    x, weight = randn(100, 512, dtype=torch.bfloat16), randn(256, 512, dtype=torch.bfloat16)
    aot_gemm.linear(x, weight, out=whole[:, :256])
    assert whole[:, 256:].isnan().all()
    assert relative_error(whole[:, :256], x, weight.t()) <= 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_around_out_is_written(dtype):
    """Rows of every length: TMA writes whole pieces of 16 bytes, which rows of other lengths do not end on."""
    for m, columns in ((1, range(1, 40)), (33, range(1, 40)), (130, range(250, 266))):
        for n in columns:
            x, weight = randn(m, 64, dtype=dtype), randn(n, 64, dtype=dtype)
            whole = poisoned(m + 2, -(-n // 8) * 8 + 8, dtype=dtype)
            out = whole[1:-1, :n]
            aot_gemm.linear(x, weight, out=out)
            assert relative_error(out, x, weight.t()) <= tolerance(dtype), (m, n)
            out.fill_(float("nan"))
            assert whole.isnan().all(), (m, n)


def test_runs_on_the_current_stream():
    x, weight = randn(4096, 4096, dtype=torch.bfloat16), randn(4096, 4096, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        source = x * 2
        out = aot_gemm.linear(source, weight)
        done = stream.query()
    assert not done
    stream.synchronize()
    assert relative_error(out, x * 2, weight.t()) <= 1e-2


@pytest.mark.parametrize("m", [1, 3, 16, 64, 300, 2048])
def test_captured_and_replayed_with_new_data(m):
    # The first launch of a kernel may fall into the capture: m and n of this test are used nowhere else.
    x, weight = randn(m, 1536, dtype=torch.float16), randn(1544 + 8 * m, 1536, dtype=torch.float16)
    out = poisoned(m, weight.shape[0], dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        aot_gemm.linear(x, weight, out=out)
    x.copy_(randn(m, 1536, dtype=torch.float16))
    out.fill_(float("nan"))
    graph.replay()
    assert relative_error(out, x, weight.t()) <= 2e-3


def test_back_to_back_dependent_products():
    """A product whose input is the one before it: programmatic dependent launch must not read too early."""
    x = randn(64, 4096, dtype=torch.bfloat16)
    weight = (torch.randn(4096, 4096, device="cuda") / 64).to(torch.bfloat16)
    expected, result = x, x
    for _ in range(30):
        expected = (expected.float() @ weight.float().t()).to(torch.bfloat16)
        result = aot_gemm.linear(result, weight)
    assert relative_error(result, expected, torch.eye(4096, device="cuda", dtype=torch.bfloat16)) <= 5e-2


def test_same_bits_every_time():
    for m, n, k in random_shapes(seed=5, count=60):
        x, weight = randn(m, k, dtype=torch.bfloat16), randn(n, k, dtype=torch.bfloat16)
        first = aot_gemm.linear(x, weight)
        assert torch.equal(first, aot_gemm.linear(x, weight)), (m, n, k)


def test_many_threads():
    rng = random.Random(7)
    cases = [
        (randn(m, k, dtype=torch.bfloat16), randn(n, k, dtype=torch.bfloat16))
        for m, n, k in (random_shape(rng, True) for _ in range(32))
    ]
    torch.cuda.synchronize()
    errors = []

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            for x, weight in cases[index::4]:
                out = aot_gemm.linear(x, weight)
                torch.cuda.current_stream().synchronize()
                errors.append(relative_error(out, x, weight.t()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 32
    assert max(errors) <= 1e-2


def test_typed_errors():
    x, weight = randn(4, 64, dtype=torch.bfloat16), randn(16, 64, dtype=torch.bfloat16)
    with pytest.raises(aot_gemm.DtypeError, match="float64"):
        aot_gemm.linear(x.double(), weight.double())
    with pytest.raises(aot_gemm.DtypeError):
        aot_gemm.linear(x, weight.half())
    with pytest.raises(aot_gemm.ShapeError):
        aot_gemm.linear(x, weight[:, :32])
    with pytest.raises(aot_gemm.ShapeError):
        aot_gemm.matmul(x.expand(3, 4, 64), randn(2, 64, 8, dtype=torch.bfloat16))
    with pytest.raises(aot_gemm.DeviceError):
        aot_gemm.linear(x.cpu(), weight)
    with pytest.raises(aot_gemm.StrideError):
        aot_gemm.linear(x, weight, out=randn(1, 16, dtype=torch.bfloat16).expand(4, 16))
    assert relative_error(aot_gemm.linear(x, weight), x, weight.t()) <= 1e-2


MISSES = """
import torch, aot_gemm

def operand(rows, columns):
    return torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")

out = operand(24, 264)
for _ in range(3):
    aot_gemm.linear(operand(24, 136), operand(264, 136), out=out)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    aot_gemm.linear(operand(24, 136), operand(264, 136), out=out)
graph.replay()
aot_gemm.linear(operand(24, 137), operand(264, 137), out=out)
torch.cuda.synchronize()
print(aot_gemm.info().misses_file, aot_gemm.plan(24, 264, 137).tier)
"""


def test_misses_are_counted_captured_or_not(tmp_path):
    path = tmp_path / "misses.log"
    environment = {**os.environ, "AOT_GEMM_MISSES": str(path)}
    done = subprocess.run([sys.executable, "-c", MISSES], env=environment, capture_output=True, text=True, check=True)
    file, tier = done.stdout.split()
    assert file == str(path)
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    assert [(why, k, *launches) for why, _, _, k, *launches in lines] == [
        ("grid", "136", "24x4"),
        ("unaligned" if tier == "fallback" else tier, "137", "24x1"),
    ]


def test_the_installation_is_whole_and_loads():
    aot_gemm.check()
    aot_gemm.preload()


def test_cupy_on_its_current_stream(monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))  # CuPy writes its own kernels; the wheel has none to write
    cupy = pytest.importorskip("cupy")
    x, weight = (
        cupy.random.standard_normal((300, 512)).astype("float16"),
        cupy.random.standard_normal((520, 512)).astype("float16"),
    )
    large = cupy.ones((8192, 8192), "float32")
    cupy.cuda.Device().synchronize()  # the operands were made on another stream
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.matmul(large, large)  # a product on another stream would end before `out` is filled
        out = cupy.full((300, 520), cupy.nan, "float16")
        result = aot_gemm.linear(x, weight)
        assert aot_gemm.linear(x, weight, out=out) is out
        stream.synchronize()
    expected = x.astype("float32") @ weight.astype("float32").T
    for got in (result, out):
        assert isinstance(got, cupy.ndarray)
        assert float(cupy.linalg.norm(got.astype("float32") - expected) / cupy.linalg.norm(expected)) <= 2e-3


def test_jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    x = jax.random.normal(jax.random.key(0), (130, 512)).astype("bfloat16")
    weight = jax.random.normal(jax.random.key(1), (520, 512)).astype("bfloat16")
    result = aot_gemm.linear(x, weight)
    assert isinstance(result, jax.Array)
    expected = x.astype("float32") @ weight.astype("float32").T
    error = jax.numpy.linalg.norm(result.astype("float32") - expected) / jax.numpy.linalg.norm(expected)
    assert float(error) <= 1e-2
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.linear(x, weight, out=result)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_of_a_product_is_not_read_early(dtype):
    x, weight = randn(256, 4096, dtype=dtype), randn(4096, 4096, dtype=dtype)
    u = randn(16, 4096, dtype=dtype)
    before = aot_gemm.linear(x, weight)
    expected = [aot_gemm.linear(u, before), aot_gemm.matmul(u, before.t())]
    made = torch.empty_like(before)
    for _ in range(50):
        made.zero_()
        aot_gemm.linear(x, weight, out=made)
        early = aot_gemm.linear(u, made)
        made.zero_()
        aot_gemm.linear(x, weight, out=made)
        late = aot_gemm.matmul(u, made.t())
        assert torch.equal(early, expected[0])
        assert torch.equal(late, expected[1])


@pytest.mark.parametrize("m", [1, 16, 100, 300, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constant_weights_change_no_bit(dtype, m):
    x = randn(m, 4096, dtype=dtype)
    weights = [randn(n, 4096, dtype=dtype) for n in (4096, 6144, 1000, 28672)]
    late = [aot_gemm.linear(x, weight) for _ in range(10) for weight in weights]
    constants = [aot_gemm.constant(weight) for weight in weights]
    early = [aot_gemm.linear(x, weight) for _ in range(10) for weight in constants]
    assert all(torch.equal(a, b) for a, b in zip(early, late, strict=True))


def test_a_handle_stands_for_its_tensor():
    x, weight = randn(3, 128, dtype=torch.float16), randn(64, 128, dtype=torch.float16)
    handle = aot_gemm.constant(weight)
    assert type(handle) is aot_gemm.ConstantWeight
    assert handle.tensor is weight
    assert aot_gemm.constant(handle).tensor is weight
    assert torch.equal(aot_gemm.linear(x, handle), aot_gemm.linear(x, weight))
    assert torch.equal(aot_gemm.matmul(x, aot_gemm.constant(weight.t())), aot_gemm.matmul(x, weight.t()))
