import pytest

from aot.core.candidate import Reason
from aot.core.element import ElementType
from aot.core.errors import CandidateError
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families.simt import FAMILY
from aot.space.enumeration import Patterns, census, fallback, judge, legal
from tests.unit.twins import BF16

THOR, H200 = load_target("thor"), load_target("h200")
NAMES = ["sm100_quack_256x256_c1x1", "sm100_tgv_64x8_c1x1", "sm90_quack_64x16_c1x1_swap"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", NAMES),
        ("*", NAMES),
        ("sm100_*", NAMES[:2]),
        ("sm100_*,-*256x256*", NAMES[1:2]),
        (" -sm100_* ", NAMES[2:]),
        ("*_swap, sm100_tgv_64x[89]_*", NAMES[1:]),
        ("SM100_*", []),
        ("quack", []),
    ],
)
def test_patterns_keep_names(text, kept):
    patterns = Patterns.parse(text)
    assert [name for name in NAMES if patterns.keep(name)] == kept


@pytest.mark.parametrize("text", [",", "a,", "-", "a,,b", " "])
def test_an_empty_pattern_is_refused(text):
    with pytest.raises(CandidateError, match=r"empty pattern in '.*'; write for example 'sm100_\*,-\*256x256\*'"):
        Patterns.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "counts"),
    [
        (
            THOR,
            {
                "cluster_split_k": (80, {}),
                "mma_sync": (204, {}),
                "sm100_block_scale": (0, {Reason.TYPES: 384}),
                "sm100_persistent": (512, {Reason.TILE: 384, Reason.CLUSTER: 256}),
                "sm100_quack": (1568, {Reason.TILE: 448}),
                "sm100_tgv": (12, {Reason.SMEM: 3}),
            },
        ),
        pytest.param(
            H200,
            {
                "cluster_split_k": (120, {}),
                "gemv": (21, {}),
                "mma_sync": (500, {}),
                "sm90_block_scale": (0, {Reason.TYPES: 560}),
                "sm90_cluster_split_k": (1666, {Reason.TILE: 204, Reason.REGISTERS: 138, Reason.SMEM: 296}),
                "sm90_one_tile": (2016, {Reason.REGISTERS: 480}),
                "sm90_partial_tile": (13600, {Reason.COMBINATION: 5600, Reason.TILE: 3240, Reason.REGISTERS: 900}),
                "sm90_prefetch_b": (13600, {Reason.COMBINATION: 5600, Reason.TILE: 3240, Reason.REGISTERS: 900}),
                "sm90_quack": (11400, {Reason.COMBINATION: 3920, Reason.TILE: 4800, Reason.REGISTERS: 360}),
                "sm90_realigned": (592, {Reason.TILE: 26, Reason.REGISTERS: 46, Reason.SMEM: 104}),
                "sm90_shifted": (128, {Reason.TILE: 36, Reason.SMEM: 76}),
                "sm90_stream_k": (3600, {Reason.TILE: 972, Reason.REGISTERS: 324}),
            },
            marks=pytest.mark.walk,
        ),
    ],
)
def test_census(target, counts):
    found = census(BF16, target, Patterns())
    assert {x.family: (x.num_accepted, x.num_rejected) for x in found} == counts
    assert all(set(x.examples) == set(x.num_rejected) for x in found)
    num_storing_elements = {"h200": 592 + 416}.get(target.name, 0)
    alone = ("mma_sync", "gemv", "sm90_realigned", "sm90_shifted")
    of_unaligned_alone = sum(counts.get(x, (0,))[0] for x in alone) + num_storing_elements
    assert len(legal(BF16, target)) == sum(accepted for accepted, _ in counts.values()) - of_unaligned_alone


@pytest.mark.slow
def test_what_patterns_exclude_is_counted_with_its_reason():
    found = census(BF16, H200, Patterns.parse("sm90_quack_64x16_*_pingpong"))
    (one,) = [x for x in found if x.family == "sm90_quack"]
    assert (one.num_accepted, one.num_rejected) == (5, {Reason.PATTERN: 20480 - 5})
    assert one.examples[Reason.PATTERN].endswith("_64x16_c1x1_pingpong_serial2 is excluded by --kernels")


def test_layouts_other_than_kk_have_no_tgv():
    operation = Operation.of(ElementType.FLOAT16, Layout.MN)
    assert {x.family: x.num_accepted for x in census(operation, THOR, Patterns())}["sm100_tgv"] == 0


def test_fallbacks_are_not_tuned():
    assert "simt" not in {candidate.family for candidate, _ in judge(BF16, THOR, Patterns())}
    assert fallback(BF16, THOR) == next(FAMILY.candidates(BF16, THOR))


def test_what_a_chip_cannot_convert_has_no_fallback():
    text = "no kernel computes every e4m3_bf16_kk, so that no table can have it: simt_64x64_c1x1_direct: "
    with pytest.raises(
        CandidateError, match=f"{text}e4m3_bf16_kk needs fp8, which orin \\(sm_87\\) has not; targets that .*, l4, "
    ):
        fallback(Operation.E4M3_BF16_KK, load_target("orin"))
    assert fallback(Operation.E4M3_BF16_KK, load_target("l4")).family == "simt"


def test_nothing_left_is_an_error():
    with pytest.raises(
        CandidateError, match="no candidate of bf16_kk on thor is left; see `aot space --target thor --explain`"
    ):
        legal(BF16, THOR, Patterns.parse("sm90_*"))
