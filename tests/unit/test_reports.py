from dataclasses import replace
from pathlib import Path

import pytest
from twins import ALL_LAYOUTS, BF16, CONDITIONS, problem_of

from aot import reports
from aot.artifact import Artifact, CompileFailure
from aot.candidate import Candidate, KernelKey
from aot.dispatch import DispatchTable, Grid, Ladder, Row, Section
from aot.errors import SelectionError
from aot.measurement import Measurement, Record
from aot.selection import SELECTION_VERSION, Regret, Selection
from aot.target import load_target
from tests.golden.manifest import BIG, golden_manifest

FALLBACK = Candidate("fallback", 64, 64, use_tma_store=False)
TMA = Candidate("sm100_persistent", 128, 128, schedule="clc")
DIRECT = replace(TMA, use_tma_store=False)


def row(kernel, runner_up, time_us):
    return Row(kernel, 1, time_us, "measured", runner_up, time_us * 1.25)


GRID = Grid((64, 256), (512, 1024), (128,), tuple(row(1, 2, 10.0 + i) for i in range(4)))
SECTION = Section(BF16, (Ladder(256, 512, (16, 128), (row(1, 2, 4.0), row(2, 1, 6.0))),), GRID, 0)
SELECTION = Selection(
    SELECTION_VERSION,
    "thor",
    "measured",
    "thor",
    (CONDITIONS,),
    (Regret(BF16, 2, 2, 0.0125, 0.1),),
    tuple(KernelKey(BF16, x) for x in (FALLBACK, TMA, DIRECT)),
    DispatchTable((SECTION,)),
)


def test_numbers_stand_right_and_texts_left():
    assert reports.table(("name", "count"), [("a", "1,000"), ("long", 2.5)]) == (
        "name  count\n----  -----\na     1,000\nlong    2.5"
    )
    assert reports.table(("name",), []) == "name\n----"


def test_targets():
    lines = reports.targets_table([load_target("thor")]).splitlines()
    assert lines[2].split() == [
        *("thor", "sm_110a", "20", "232,448", "512", "32", "273", "258"),
        *("aarch64-unknown-linux-gnu", "manylinux_2_28_aarch64"),
    ]


@pytest.mark.parametrize(
    ("m", "n", "k", "lines"),
    [
        (
            *(16, 256, 512),
            [
                "bf16_kk m16 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 1: ladder of (n 256, k 512), bucket m <= 16 of 16, 128",
                "  time       4.0 us measured for the bucket's upper edge",
                "  runner-up  bf16_kk_sm100_persistent_128x128_c1x1_clc_direct, 5.0 us (+25.0%)",
            ],
        ),
        (
            *(130, 256, 512),
            [
                "bf16_kk m130 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  instead of bf16_kk_sm100_persistent_128x128_c1x1_clc_direct, which needs whole tiles",
                "  from       tier 1: ladder of (n 256, k 512), bucket m <= 128 of 16, 128",
                "  time       6.0 us measured for the bucket's upper edge",
                "  runner-up  bf16_kk_sm100_persistent_128x128_c1x1_clc, 7.5 us (+25.0%)",
            ],
        ),
        (
            *(65, 512, 512),
            [
                "bf16_kk m65 n512 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 2: grid cell m <= 256, n <= 512, k <= 128",
                "  time       12.0 us measured as the mean of the cell's shapes",
                "  runner-up  bf16_kk_sm100_persistent_128x128_c1x1_clc_direct, 15.0 us (+25.0%)",
            ],
        ),
        (
            *(16, 256, 511),
            [
                "bf16_kk m16 n256 k511",
                "  kernel     bf16_kk_fallback_64x64_c1x1_direct",
                "  fallback: a leading stride is not a multiple of 16 bytes",
            ],
        ),
    ],
)
def test_explanations(m, n, k, lines):
    assert reports.explanation(SELECTION, problem_of(m, n, k)).splitlines() == lines


def test_an_operation_without_a_table_is_an_error():
    with pytest.raises(SelectionError, match="the selection has no table for bf16_mn"):
        reports.explanation(SELECTION, problem_of(1, 8, 8, ALL_LAYOUTS[3]))


def test_selections_and_records():
    assert reports.selection_summary(SELECTION).splitlines() == [
        "thor: 3 kernels, measured (thor)",
        "operation  problems  kernels  mean regret  worst regret",
        "---------  --------  -------  -----------  ------------",
        "bf16_kk           2        2  1.25%        10.00%",
    ]
    good = Measurement(KernelKey(BF16, TMA), problem_of(1, 8, 8), 2.0, 1.0, 3.0, 7, 1e-3)
    bad = replace(good, problem=problem_of(2, 8, 8), status="hung")
    assert reports.record_summary(Record("thor", (CONDITIONS,), (good, bad))).splitlines() == [
        "Twin, 4 SMs, driver 1.0, p1",
        "operation  problems  kernels  times  failures",
        "---------  --------  -------  -----  --------",
        "bf16_kk           2        1      1         1",
    ]


def test_artifacts_and_failures():
    kernel = next(x for x in golden_manifest().kernels if x.candidate == BIG)
    lines = reports.artifacts_table([Artifact(kernel, Path("x"))], [CompileFailure("k", "why")]).splitlines()
    assert lines[2].split() == [kernel.name, "35000", "229376", "0", "168", "0"]
    assert lines[3] == "failed: k: why"
