from dataclasses import replace
from pathlib import Path

from aot.cli import tables
from aot.compile.artifact import Artifact, CompileFailure
from aot.core.candidate import KernelKey
from aot.core.measurement import Measurement, Outcome, Record, Status
from aot.core.shape_set import parse_shape_set
from aot.core.target import load_target
from tests.golden.manifest import BIG, golden_manifest
from tests.unit.reported import TMA
from tests.unit.twins import BF16, CONDITIONS, problem_of


def test_numbers_stand_right_and_texts_left():
    assert tables.table(("name", "count"), [("a", "1,000"), ("long", 2.5)]) == (
        "name  count\n----  -----\na     1,000\nlong    2.5"
    )
    assert tables.table(("name",), []) == "name\n----"


def test_targets():
    lines = tables.targets_table([load_target("thor")]).splitlines()
    assert lines[2].split() == [
        *("thor", "sm_110a", "20", "232,448", "512", "32", "273", "258", "516", "516", "129", "8.06"),
        *("aarch64-unknown-linux-gnu", "manylinux_2_28_aarch64"),
        *("cp_async", "mma_sync", "fp8", "dependent_launch", "tma", "clusters", "tcgen05", "block_scale"),
    ]
    assert tables.targets_table([load_target("a100")]).splitlines()[2].split()[8] == "-"


MISSES = parse_shape_set(
    """version = 1
dropped = 5
[[model]]
name = "grid"
dtypes = ["bfloat16"]
layouts = ["kk"]
weights = [{ name = "w", n = 16, k = 8 }]
m = [3, 40]
counts = [2, 1000]
[[model]]
name = "plain"
dtypes = ["float16"]
layouts = ["kn"]
weights = [{ name = "w", n = 24, k = 8 }]
m = [8]
""",
    "x",
)


def test_a_miss_log_shows_its_launches():
    assert tables.shapes_table(MISSES).splitlines() == [
        "model  weight   n  k  launches  m x launches",
        "-----  ------  --  -  --------  ------------",
        "grid   w       16  8  1002      3x2 40x1000",
        "plain  w       24  8  -         8",
        "2 problems of bf16_kk, 1 problems of fp16_kn; 5 launches of others that the log had no room for",
    ]
    assert [line.split() for line in tables.problems_table(MISSES).splitlines()[2:]] == [
        ["bf16_kk", "3", "16", "8", "0.00", "0.00", "2"],
        ["bf16_kk", "40", "16", "8", "0.00", "0.00", "1000"],
        ["fp16_kn", "8", "24", "8", "0.00", "0.00", "-"],
    ]


def test_records():
    good = Measurement(KernelKey(BF16, TMA), problem_of(1, 8, 8), 2.0, 1.0, 3.0, 7, 1e-3)
    bad = replace(good, problem=problem_of(2, 8, 8), status=Status(Outcome.FAILED, "hung"))
    assert tables.record_summary(Record("thor", (CONDITIONS,), (good, bad))).splitlines() == [
        "Twin, 4 SMs, driver 1.0, p1",
        "operation  problems  kernels  times  failures",
        "---------  --------  -------  -----  --------",
        "bf16_kk           2        1      1         1",
    ]


def test_artifacts_and_failures():
    kernel = next(x for x in golden_manifest().kernels if x.candidate == BIG)
    lines = tables.artifacts_table([Artifact(kernel, Path("x"))], [CompileFailure("k", "why")]).splitlines()
    assert lines[2].split() == [kernel.name, "35000", "229376", "0", "168", "0"]
    assert lines[3] == "failed: k: why"
