"""What watches every kernel of a wheel under compute-sanitizer, with stand-ins for the device and for the tool."""

from __future__ import annotations

import json
import sys

import pytest

from tests.device import sanitize, sanitize_worker
from tests.device.sanitize_cases import ShippedKernel, read_kernels
from tests.device.sanitize_control import NAME, control_ptx
from tests.device.sanitize_reports import Stream
from tests.device.sanitize_summary import summarise
from tests.unit.row_twins import row_kernel_of
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of

pytestmark = pytest.mark.slow

CANDIDATE = {
    "family": "sm90_quack",
    "tile_m": 128,
    "tile_n": 64,
    "cluster_m": 2,
    "cluster_n": 1,
    "num_stages": 0,
    "schedule": "pingpong",
    "split_k": 1,
    "split_k_mode": "none",
    "swap_ab": False,
    "use_2cta": False,
    "use_tma_store": True,
}


def product(name="bf16_kk_x", index=0, *, signature=("a", "b", "d", "stream"), operation="bf16_kk", **candidate):
    facts = {
        "candidate": CANDIDATE | candidate,
        "m_multiple": 1,
        "n_multiple": 1,
        "num_sms": 20,
        "operation": operation,
        "signature": list(signature),
        "smem_bytes": 100_000,
    }
    return ShippedKernel(name, f"digest of {name}", index, is_on_rows=False, facts=facts)


def on_rows(name="bf16_rms_norm_x", index=0):
    facts = {
        "candidate": {"family": "row_registers"},
        "limits": {"alignment_bytes": 16, "cols_multiple": 8, "max_cols": 1024},
        "operation": "bf16_rms_norm",
    }
    return ShippedKernel(name, f"digest of {name}", index, is_on_rows=True, facts=facts)


def problems(kernel):
    return {case.name.split()[0]: case.shape.problem for case in kernel.cases()}


@pytest.mark.parametrize("swap", [False, True])
def test_the_cases_of_a_product_go_through_the_whole_kernel(swap):
    kernel = product(swap_ab=swap)
    found = problems(kernel)
    few, many = found["few"], found["many"]
    extents = (few.n, few.m) if swap else (few.m, few.n)
    assert extents[0] > 256, "more than a cluster of two tiles"
    assert extents[1] > 64
    assert extents[0] % 128 != 0, "the last tile is partial"
    assert extents[1] % 64 != 0
    assert few.k * 2 * (128 + 64) > 100_000, "more than shared memory holds, so that stages are used again"
    assert (found["one"].m, found["one"].n) == (1, 8)
    tile = 64 if swap else 128
    assert -(-many.m // tile) > 2 * 20, "more than two tiles for each SM"
    assert [case.promises for case in kernel.cases()] == [(False, True), (True,), (False,)]


def test_a_kernel_with_knobs_of_its_own_is_watched_on_whole_groups_of_its_weight():
    candidate = {"family": "weight_only", "knobs": {"blocks": 1, "columns": 16, "stages": 3, "tiles": 2, "warps": 4}}
    facts = product(operation="bf16xint4g128_bf16_kk").facts | {"candidate": candidate}
    found = problems(ShippedKernel("x", "digest", 0, is_on_rows=False, facts=facts))
    assert {name: x.k % 128 for name, x in found.items()} == {"few": 0, "one": 0, "many": 0}
    assert (found["few"].m > 16, found["few"].n > 32, found["few"].k > 2000) == (True, True, True)


def test_a_kernel_that_splits_k_has_more_of_it():
    assert problems(product(split_k=4, split_k_mode="separate"))["few"].k >= 3.9 * problems(product())["few"].k


def test_a_kernel_that_takes_an_order_of_tiles_is_watched_in_others():
    orders = {
        case.order
        for index in range(9)
        for case in product(index=index, signature=("a", "b", "d", "tile_order", "stream")).cases()
    }
    assert orders == set(range(9))
    assert {case.order for case in product(index=5).cases()} == {0}


def test_arrangements_of_operands_and_groups_take_turns():
    shapes = [
        case.shape
        for index in range(5)
        for case in product(index=index, operation="bf16_kk_grouped").cases()
        if case.name.startswith("few")
    ]
    assert len({x.sizes for x in shapes}) == 4
    assert {x.problem.num_groups for x in shapes} == {7}
    gated = [product(index=i, operation="bf16_kk_swiglu").cases()[0].shape.arrangement for i in range(5)]
    assert {x.is_interleaved for x in gated} == {False, True}


def test_a_fallback_is_watched_on_addresses_that_are_not_aligned():
    shapes = [case.shape for case in product(family="simt").cases()]
    assert {x.offset for x in shapes} == {1}
    assert shapes[0].problem.n % 8


def test_a_manifest_gives_products_and_row_kernels(tmp_path):
    kernels = [product("b", 0), product("a", 1)]
    facts = [x.facts | {"name": x.name, "object_sha256": x.digest} for x in kernels]
    content = {"kernels": [*facts, on_rows().facts | {"name": "r", "object_sha256": "s"}]}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(content))
    assert [(x.name, x.index, x.is_on_rows) for x in read_kernels(path)] == [
        ("a", 1, False),
        ("b", 0, False),
        ("r", 0, True),
    ]


def said(text):
    return [json.loads(x.removeprefix(sanitize_worker.MARK)) for x in text.splitlines()]


@pytest.mark.parametrize("fault", ["", "wrong"])
def test_a_worker_runs_each_case_turn_by_turn_and_compares(monkeypatch, capsys, tmp_path, fault):
    gpu = TwinGpu()
    tuned, on_row = kernel_of(), row_kernel_of()
    twins = TwinKernels(gpu, [tuned, on_row], faults={x.name: (fault, 1) for x in (tuned, on_row)})
    kernels = [product(tuned.name), on_rows(on_row.name)]
    done = [(kernels[0].digest, kernels[0].cases()[2].name)]
    plan = {"library": "lib.so", "kernels": [vars(x) for x in kernels], "done": done, "deadline": 4e9}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    for name, value in {"CudaGpu": gpu, "KernelLibrary": twins, "read_properties": None}.items():
        monkeypatch.setattr(sanitize_worker, name, lambda *_, value=value: value)
    monkeypatch.setattr(sys, "argv", ["worker", str(path)])
    assert sanitize_worker.main() == 0
    lines = said(capsys.readouterr().out)
    begun = [x["case"].split()[0] for x in lines if "begin" in x]
    assert begun == ["few", "rows", "rows", "one", "rows", "rows", "rows"]
    faults = [x["fault"][:12] for x in lines if "end" in x]
    expected = ["wrong result"] * 7 if fault else [""] * 7
    assert faults == expected
    assert lines[-1] == {"ended": True}
    assert gpu.num_allocations == 0


def test_a_worker_ends_at_the_deadline_and_where_the_context_is_lost(capsys):
    gpu = TwinGpu()
    kernels = [on_rows()]
    runner = sanitize_worker.Runner(gpu, TwinKernels(gpu, [kernel_of()]))
    assert sanitize_worker.work(gpu, runner, kernels, set(), 0.0) == 0
    assert said(capsys.readouterr().out) == [{"ended": True}]
    runner.fault = lambda *_: "an illegal address"
    gpu.is_lost = lambda: True
    assert sanitize_worker.work(gpu, runner, kernels, set(), 4e9) == sanitize_worker.LOST
    assert [set(x) for x in said(capsys.readouterr().out)] == [{"begin", "case"}, {"end", "seconds", "fault"}]


RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel_cutlass_{name}+0x1570
=========     and Read access at kernel_cutlass_{name}+0x29d0 [{count} hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_reports_are_gathered_without_what_differs_from_launch_to_launch():
    stream = Stream()
    for count in (560, 544):
        for line in RACE.format(name="k", count=count).splitlines():
            stream.take(line)
    stream.take("Traceback (most recent call last):")
    first, second = (
        "Error: Race reported between Write access at kernel_cutlass_k",
        "and Read access at kernel_cutlass_k",
    )
    assert stream.drain() == [f"{first}+0x1570\n{second}+0x29d0 *"]
    assert (stream.num_reports, stream.num_told, stream.drain()) == (2, 2, [])
    assert stream.other == ["Traceback (most recent call last):"]


FAKE = """
import json, pathlib, sys, time
def say(**values): print({mark!r} + json.dumps(values), flush=True)
words = sys.argv[sys.argv.index("tests.device.sanitize_worker") + 1:]
if "--control" in words:
    print("========= Invalid __global__ write of size 4 bytes" if {sees} else "nothing")
    print("=========     at kernel_cutlass_control+0xa0")
    sys.exit()
plan = json.loads(pathlib.Path(words[0]).read_text())
for kernel in plan["kernels"]:
    name, case = kernel["name"], "few"
    if [kernel["digest"], case] in plan["done"]: continue
    say(begin=name, case=case)
    if name == "dies": sys.exit(9)
    if name == "hangs": time.sleep(60)
    is_clean = name in ("clean", "late")
    if not is_clean: print("========= Error: Race reported between Write access at kernel_cutlass_x+0x10")
    say(end=name, seconds=0.5, fault="wrong result" if name == "wrong" else "")
    if not is_clean: print("=========     and Read access at kernel_cutlass_x+0x20 [3 hazards]")
say(ended=True)
if name == "late": print("========= Invalid __global__ read of size 4 bytes at kernel_cutlass_x+0x10")
print("========= ERROR SUMMARY: %d errors" % (name != "clean"))
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Return what runs the parent with a stand-in for the sanitizer, on kernels of these names."""

    def run(*names, sees=True, cases=("few",), arguments=()):
        script = tmp_path / "sanitizer"
        script.write_text(f"#!{sys.executable}\n" + FAKE.format(mark=sanitize_worker.MARK, sees=sees))
        script.chmod(0o755)
        kernels = [product(name, i) for i, name in enumerate(names)]
        monkeypatch.setattr(sanitize, "library_of", lambda _: tmp_path / "lib.so")
        monkeypatch.setattr(sanitize, "read_kernels", lambda _: kernels)
        monkeypatch.setattr(ShippedKernel, "cases", lambda _: [type("Case", (), {"name": x}) for x in cases])
        words = ["--sanitizer", str(script), "--out", str(tmp_path / "out"), "--processes", "2", *arguments]
        status = sanitize.main(words)
        return status, json.loads((tmp_path / "out" / "memcheck.json").read_text())

    return run


def test_reports_deaths_and_wrong_results_are_each_told_of_their_kernel(tool, capsys):
    status, summary = tool("a", "b", "dies", "c", "wrong")
    assert status == 1
    assert summary["faults"] == ["dies few: the process ended with 9 in this case", "wrong few: wrong result"]
    (report,) = summary["reports"]
    assert report["kernels"] == dict.fromkeys(("a", "b", "c", "wrong"), "few")
    assert report["example"].endswith("and Read access at kernel_cutlass_x+0x20 *")
    assert (summary["num_whole"], summary["num_clean"], summary["not_reached"]) == (5, 0, [])
    assert summary["sees_fault"]
    assert "memcheck: 0 of 5 kernels clean" in capsys.readouterr().out


def test_what_was_watched_is_not_watched_again(tool, tmp_path):
    tool("a")
    first = (tmp_path / "out" / "memcheck.jsonl").read_text()
    with (tmp_path / "out" / "memcheck.jsonl").open("a") as file:
        file.write('{"broken off')
    status, summary = tool("a", "b")
    assert status == 1
    assert summary["num_whole"] == 2
    lines = (tmp_path / "out" / "memcheck.jsonl").read_text()
    assert lines.startswith(first)
    assert lines.count('"kernel": "a"') == 1


def test_a_kernel_that_hangs_is_not_reached_at_the_deadline(tool):
    status, summary = tool("hangs", arguments=["--budget-seconds", "6.5"])
    assert (status, summary["not_reached"]) == (2, ["hangs"])


def test_a_tool_that_does_not_see_its_control_proves_nothing(tool):
    status, summary = tool(sees=False)
    assert (status, summary["sees_fault"]) == (2, False)
    assert "the control was not reported" in summary["troubles"][0]


@pytest.mark.parametrize(
    ("names", "cases", "status", "troubles"),
    [
        (["clean"], ["few"], 0, []),
        (["clean"], ["few", "many"], 2, []),
        (["late"], ["few"], 2, ["1 times: outside every case: Invalid __global__ read of size 4 bytes at *"]),
        ([], ["few"], 2, []),
    ],
)
def test_all_is_well_where_every_case_was_watched_and_nothing_was_in_trouble(tool, names, cases, status, troubles):
    got, summary = tool(*names, cases=cases)
    assert (got, summary["reports"], summary["faults"]) == (status, [], [])
    assert [x.partition("kernel_cutlass")[0] + "*" * bool(x) for x in summary["troubles"]] == troubles


def test_clean_is_told_apart_from_not_reached():
    kernels = [product("a"), product("b")]
    records = [{"kernel": "a", "digest": kernels[0].digest, "case": x.name, "seconds": 1.0} for x in kernels[0].cases()]
    summary = summarise(tool="memcheck", sees_fault=True, kernels=kernels, records=records, troubles=[], seconds=2.0)
    assert (summary["num_clean"], summary["num_whole"], summary["not_reached"]) == (1, 1, ["b"])


@pytest.mark.parametrize("name", sanitize.TOOLS)
def test_each_tool_has_a_fault_to_find_in_a_kernel_that_is_watched(name):
    text = control_ptx(name).decode()
    assert f".visible .entry {NAME.decode()}(" in text
    assert len({control_ptx(x) for x in sanitize.TOOLS}) == 3
    (chosen,) = [x for x in sanitize.command_of(name, "s") if x.startswith("kns=")]
    assert NAME.decode().startswith(chosen.removeprefix("kns="))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sanitizer", "no-such-program"], "there is no no-such-program here"),
        (["--sanitizer", sys.executable, "--processes", "0"], "--processes is at least 1"),
        (["--sanitizer", sys.executable, "--budget-seconds", "5"], "--budget-seconds more than 5"),
    ],
)
def test_a_wrong_command_line_is_refused(words, text, capsys):
    with pytest.raises(SystemExit):
        sanitize.parse(words)
    assert text in capsys.readouterr().err
