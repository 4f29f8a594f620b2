from dataclasses import replace

from aot.cli import selection_tables
from aot.core.dispatch import Tier
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.select.score.diff import Change, Difference
from aot.select.selection import AgainstReference, Curve, CurvePoint, HeldOut
from tests.unit.reported import DIRECT, SELECTION, TMA
from tests.unit.twins import BF16, problem_of


def test_a_selection_without_more():
    assert selection_tables.selection_summary(SELECTION).splitlines() == [
        "thor: 3 kernels, measured (thor)",
        "",
        "operation  problems  kernels  mean regret  at least  worst regret  chosen by",
        "---------  --------  -------  -----------  --------  ------------  ---------",
        "bf16_kk           2        2  1.25%        1.00%     10.00%        exact",
        "",
        "nothing was held out: the bucketing loss is not known",
    ]


def test_a_selection_with_its_curve_and_what_was_held_out():
    points = (
        CurvePoint(1, 0.05, 0.25, 0.04, 10 * 1024, False),
        CurvePoint(2, 0.0125, 0.1, 0.01, 30 * 1024, True),
        CurvePoint(4, 0.0, 0.0, 0.0, 61 * 1024, True),
    )
    head, nearby, foreign = "worst bucketing at", "bf16_kk m9 n256 k512", "bf16_kk m5 n8 k8"
    heldout = (
        HeldOut(BF16, 1, 30, 2, 0.0021, 0.031, 0.004, 0.05, nearby),
        HeldOut(BF16, 2, 7, 0, 0.01, 0.02, 0.03, 0.04, foreign),
    )
    text = selection_tables.selection_summary(replace(SELECTION, curves=(Curve(BF16, points),), heldout=heldout))
    assert text.splitlines()[5:] == [
        "",
        "bf16_kk",
        "kernels  mean regret  at least  worst regret  KiB in the wheel  mean regret",
        "-------  -----------  --------  ------------  ----------------  ----------------------------------------",
        "      1  5.00%        4.00%     25.00%        10                ########################################",
        "      2  1.25%        1.00%     10.00%        ~30               ########## <- chosen",
        "      4  0.00%        0.00%     0.00%         ~61               #",
        "~ some kernels are not compiled here: the others' mean",
        "",
        f"held out                          problems  no time  bucketing: mean  worst  regret: mean  worst  {head}",
        f"--------  ----------------------  --------  -------  ---------------  -----  ------------  -----  {20 * '-'}",
        f"bf16_kk   tuned n and k, other m        30        2  0.21%            3.10%  0.40%         5.00%  {nearby}",
        f"bf16_kk   other n and k                  7        0  1.00%            2.00%  3.00%         4.00%  {foreign}",
    ]


def test_a_curve_of_kernels_that_cost_nothing_has_bars_and_no_note():
    text = selection_tables.curve_table(Curve(BF16, (CurvePoint(2, 0.0, 0.0, 0.0, 1024, False),)), SELECTION)
    assert text.splitlines()[3:] == ["      2  0.00%        0.00%     0.00%                        1  # <- chosen"]


CHANGES = (
    Change(Tier.TUNED, problem_of(16, 256, 512), TMA, DIRECT, 0.002, True),
    Change(Tier.GRID, problem_of(64, 512, 128), DIRECT, TMA, 0.05, False),
    Change(Tier.GRID, problem_of(64, 1024, 128), DIRECT, TMA, -0.01, False),
    Change(Tier.GRID, problem_of(256, 1024, 128), DIRECT, TMA, None, False),
)


def test_speeds_over_the_library_stand_below_a_selection_where_there_are_any():
    fp16 = Operation.of(ElementType.FLOAT16)
    found = (
        AgainstReference(BF16, False, 40, 2, 1.0345, 5, 1, 0.9149, "bf16_kk m16 n256 k512"),
        AgainstReference(fp16, True, 8, 0, 0.9996, 0, 0, 0.985, "fp16_kk m1 n256 k512"),
    )
    text = selection_tables.selection_summary(replace(SELECTION, references=found))
    assert text.startswith(f"{selection_tables.selection_summary(SELECTION)}\n\n")
    lines = text.removeprefix(selection_tables.selection_summary(SELECTION)).strip().splitlines()
    assert " ".join(lines[0].split()) == (
        "over the library problems no time speed: mean below 0.98 below 0.93 worst worst at"
    )
    assert [line.split() for line in lines[2:]] == [
        [
            "bf16_kk",
            "selected",
            "on",
            "40",
            "2",
            "1.034x",
            "5",
            "(12.50%)",
            "1",
            "0.915x",
            *found[0].worst_problem.split(),
        ],
        ["fp16_kk", "held", "out", "8", "0", "1.000x", "0", "(0.00%)", "0", "0.985x", *found[1].worst_problem.split()],
    ]


def test_a_difference_shows_the_costliest_changes():
    found = Difference(200, CHANGES, ("a", "b"), (), (Operation.of(ElementType.FLOAT16),))
    tma, direct = TMA.name, DIRECT.name
    lines = selection_tables.difference_table(found, 3).splitlines()
    assert lines[:5] == [
        "4 of 200 entries have another kernel (2.00%)",
        "kernels added: a, b",
        "kernels dropped: none",
        "only in one of the two: fp16_kk",
        "the changes cost 1.40% in the mean, 5.00% at worst; 1 over 1%",
    ]
    assert [line.split() for line in lines[7:]] == [
        ["2", "bf16_kk", "m64", "n512", "k128", direct, tma, "+5.00%", "learned"],
        ["1", "bf16_kk", "m16", "n256", "k512", tma, direct, "+0.20%", "measured"],
        ["2", "bf16_kk", "m256", "n1024", "k128", direct, tma, "-"],
    ]
    assert len(selection_tables.difference_table(found, 9).splitlines()) == 5 + 2 + 4


def test_no_difference_and_no_costs_are_said_in_few_lines():
    assert selection_tables.difference_table(Difference(7, (), (), (), ()), 20).splitlines() == [
        "0 of 7 entries have another kernel (0.00%)",
        "kernels added: none",
        "kernels dropped: none",
    ]
    assert len(selection_tables.difference_table(Difference(7, CHANGES[3:], (), ("x",), ()), 0).splitlines()) == 3
