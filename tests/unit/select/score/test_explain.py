from dataclasses import replace

import pytest

from aot.core.candidate import changed
from aot.core.dispatch import DispatchTable
from aot.core.element import ElementType
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.select.score.explain import explained
from tests.unit.reported import DIRECT, SELECTION, TMA
from tests.unit.twins import ALL_LAYOUTS, BF16, problem_of

THOR = load_target("thor")
BIGGER = "  bigger tiles of the family, all else equal"
WIDE = changed(TMA, tile_n=256)


def lines_of(m, n, k, timed=None, selection=SELECTION):
    return explained(selection, problem_of(m, n, k), THOR, timed or {}).text.splitlines()


def before_tiles(lines):
    assert lines[-4] == BIGGER or BIGGER not in lines
    return lines[: lines.index(BIGGER)] if BIGGER in lines else lines


@pytest.mark.parametrize(
    ("m", "n", "k", "lines"),
    [
        (
            *(16, 256, 512),
            [
                "bf16_kk m16 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 1: ladder of (n 256, k 512), bucket m 1 to 16, 1 of 2",
                "  time       4.0 us measured for the bucket's upper edge",
                "  runner-up  bf16_kk_sm100_persistent_128x128_c1x1_clc_direct, 5.0 us (+25.0%)",
                "  roofline   1.05 us for this problem, by memory (0.273 TB/s)",
                "  achieved   26% of the roofline of the bucket's upper edge, 1.05 us; measured",
            ],
        ),
        (
            *(4, 256, 512),
            [
                "bf16_kk m4 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 1: ladder of (n 256, k 512), bucket m 1 to 16, 1 of 2",
                "  time       4.0 us measured for the bucket's upper edge",
                "  runner-up  bf16_kk_sm100_persistent_128x128_c1x1_clc_direct, 5.0 us (+25.0%)",
                "  roofline   0.98 us for this problem, by memory (0.273 TB/s)",
                "  achieved   26% of the roofline of the bucket's upper edge, 1.05 us; measured",
            ],
        ),
        (
            *(100, 256, 512),
            [
                "bf16_kk m100 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 1: ladder of (n 256, k 512), bucket m >= 17, 2 of 2",
                f"  instead of bf16_kk_{DIRECT.name}, 6.0 us measured, which needs whole tiles",
                "  time       none of this kernel in the table",
                "  roofline   1.52 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
        (
            *(257, 256, 512),
            [
                "bf16_kk m257 n256 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 1: ladder of (n 256, k 512), bucket m >= 17, 2 of 2",
                f"  instead of bf16_kk_{DIRECT.name}, which needs whole tiles",
                "  time       none: the table's last bucket ends at m 128: no time is known for m 257",
                "  roofline   2.41 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
        (
            *(65, 512, 512),
            [
                "bf16_kk m65 n512 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 2: grid cell m <= 256, n <= 512, k <= 128",
                "  time       none: a cell of the grid is chosen by predictions of other shapes",
                "  roofline   2.41 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
        (
            *(64, 512, 512),
            [
                "bf16_kk m64 n512 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 2: grid cell m <= 64, n <= 512, k <= 128",
                "  time       none: a cell of the grid is chosen by predictions of other shapes",
                "  roofline   2.40 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
        (
            *(300, 520, 512),
            [
                "bf16_kk m300 n520 k512",
                "  kernel     bf16_kk_sm100_persistent_128x128_c1x1_clc",
                "  from       tier 2: grid cell m <= 256, n <= 1024, k <= 128",
                "  time       none: a cell of the grid is chosen by predictions of other shapes",
                "  roofline   4.22 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
        (
            *(16, 256, 511),
            [
                "bf16_kk m16 n256 k511",
                "  kernel     bf16_kk_simt_64x64_c1x1_direct",
                "  fallback   k 511 is not a multiple of 8; the table has no time",
                "  roofline   1.05 us for this problem, by memory (0.273 TB/s)",
            ],
        ),
    ],
)
def test_explanations(m, n, k, lines):
    assert before_tiles(lines_of(m, n, k)) == lines


def test_a_time_below_the_roofline_is_not_told():
    (section,) = SELECTION.table.sections
    (ladder,) = section.ladders
    rows = tuple(replace(row, time_us=1.0) for row in ladder.rows)
    section = replace(section, ladders=(replace(ladder, rows=rows),))
    found = explained(replace(SELECTION, table=DispatchTable((section,))), problem_of(16, 256, 512), THOR, {})
    line = "  time       none: the table's time here is less than the roofline, so that it is not this problem's"
    assert found.text.splitlines()[3] == line
    assert (found.time_us, found.provenance, found.runner_up_us) == (None, None, None)


def test_bigger_tiles_by_measurement_by_the_model_and_by_legality():
    timed = {BF16: {problem_of(16, 256, 512): {WIDE: 4.4}}}
    tiles = lines_of(4, 256, 512, timed)[-3:]
    assert tiles[1] == "    128x256  legal: 4.4 us measured (+10.0%)"
    assert tiles[0] == "    256x128  not legal: tcgen05 takes tile_m (64, 128) with use_2cta=False, got 256"
    assert lines_of(4, 256, 512)[-2].endswith("% by the cost model, not timed here")
    # A cell has no time, so that no measurement of one shape is set against it.
    assert lines_of(65, 512, 512, timed)[-2].endswith("% by the cost model, not timed here")


def test_a_bigger_tile_that_is_shipped_says_so():
    names = [*SELECTION.kernels, type(SELECTION.kernels[0])(BF16, WIDE)]
    lines = lines_of(4, 256, 512, selection=replace(SELECTION, kernels=tuple(names)))
    assert lines[-2].endswith("not timed here; it is shipped too")


def test_a_bucket_with_one_kernel_has_no_runner_up():
    (section,) = SELECTION.table.sections
    (ladder,) = section.ladders
    rows = tuple(replace(row, runner_up=row.kernel) for row in ladder.rows)
    section = replace(section, ladders=(replace(ladder, rows=rows),))
    lines = lines_of(16, 256, 512, selection=replace(SELECTION, table=DispatchTable((section,))))
    assert lines[4] == "  runner-up  none: no other kernel has a time here"


def test_a_layout_without_a_table_is_left_to_the_fallback():
    lines = explained(SELECTION, problem_of(16, 8, 8, ALL_LAYOUTS[3]), THOR, {}).text.splitlines()
    assert lines[1:3] == [
        "  kernel     bf16_kk_simt_64x64_c1x1_direct",
        "  fallback   no kernels of layout mn: they were not asked for; the table has no time",
    ]


@pytest.mark.parametrize(
    ("problem", "launched"),
    [
        (problem_of(1, 256, 512, ALL_LAYOUTS[2]), "bf16_kk m1 n256 k512"),
        (problem_of(256, 1, 512), "bf16_kk m1 n256 k512"),
    ],
)
def test_what_is_the_same_memory_in_another_layout_is_looked_up_there(problem, launched):
    lines = explained(SELECTION, problem, THOR, {}).text.splitlines()
    assert lines[3] == f"  read as    {launched}, which is the same memory"
    assert lines[1:3] == explained(SELECTION, problem_of(1, 256, 512), THOR, {}).text.splitlines()[1:3]


def test_an_element_type_without_a_table_is_an_error():
    fp16 = Operation.of(ElementType.FLOAT16)
    message = "the selection has no table for fp16; its wheel refuses such operands"
    with pytest.raises(SelectionError, match=message):
        explained(SELECTION, problem_of(1, 8, 8, fp16), THOR, {})


def test_the_facts_are_those_of_the_text():
    found = explained(SELECTION, problem_of(16, 256, 512), THOR, {})
    assert (found.problem, found.kernel) == ("bf16_kk m16 n256 k512", "bf16_kk_sm100_persistent_128x128_c1x1_clc")
    assert (found.tier, found.bound, round(found.roofline_us, 2)) == ("tuned", "memory", 1.05)
    assert (found.time_us, found.provenance) == (4.0, "measured")
    assert (found.runner_up, found.runner_up_us) == ("bf16_kk_sm100_persistent_128x128_c1x1_clc_direct", 5.0)
    general = explained(SELECTION, problem_of(16, 8, 8, ALL_LAYOUTS[3]), THOR, {})
    assert (general.tier, general.time_us, general.provenance, general.runner_up) == ("fallback", None, None, None)
