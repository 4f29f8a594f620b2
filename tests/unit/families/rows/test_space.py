from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Candidate, Reason, Rejected
from aot.core.errors import CandidateError
from aot.core.feature import Feature
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import all_families_for, families_of, rows_families_of, rows_family_of
from aot.kinds.rows.candidate import RowLimits, row_candidate
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.function import SILU_MUL
from aot.space.enumeration import Patterns, fallback, judge, legal
from aot.space.legality import check
from tests.compiling import some

H200, THOR = load_target("h200"), load_target("thor")
NORM, LAYER = row_operation("bf16_rms_norm"), row_operation("bf16_layer_norm")
GOOD = row_candidate("row_registers", 128, 2, 8, 4)


def reason(candidate, operation=NORM, target=H200):
    verdict = check(candidate, operation, target)
    assert isinstance(verdict, Rejected)
    return verdict.reason, verdict.message


NAMES = ["row_looped", "row_registers", "row_rotary", "row_scalar"]


@pytest.mark.parametrize(
    ("target", "names"), [("h200", NAMES), ("thor", NAMES), ("b200", NAMES), ("rtx_pro_6000", NAMES), ("a100", [])]
)
def test_families_are_for_every_target_that_has_what_they_need(target, names):
    assert [x.name for x in all_families_for(load_target(target), "rows")] == names


def test_families_of_one_kind_have_no_candidates_of_another():
    assert [x.name for x in rows_families_of(NORM, H200)] == ["row_looped", "row_registers", "row_scalar"]
    assert not {x.name for x in families_of(Operation.BF16_KK, H200)} & {*NAMES}
    text = "row_registers_128x2_v8x4: row_registers is of the kind rows, bf16_kk of gemm"
    assert reason(GOOD, Operation.BF16_KK) == (Reason.OPERATION, text)
    with pytest.raises(CandidateError, match="simt is a family of the kind gemm; expected one of the kind rows"):
        rows_family_of(row_candidate("simt", 128, 2, 8, 4))


def test_a_legal_candidate_is_accepted_with_its_resources():
    verdict = check(GOOD, NORM, H200)
    assert isinstance(verdict, Accepted)
    assert (verdict.resources.num_threads, verdict.resources.smem_bytes) == (256, 8 * 3 * 4)


@pytest.mark.parametrize(
    ("change", "operation", "why", "text"),
    [
        (
            {"rows_per_cta": 16},
            NORM,
            Reason.THREADS,
            "row_registers_128x16_v8x4 needs 2048 threads; sm_90a takes 1024 a block",
        ),
        (
            {"threads_per_row": 1024, "rows_per_cta": 1, "vectors_per_thread": 2},
            LAYER,
            Reason.REGISTERS,
            ("row_registers_1024x1_v8x2 needs about 72 registers a thread; sm_90a gives 64 to each of 1024"),
        ),
        (
            {"vectors_per_thread": 32},
            NORM,
            Reason.REGISTERS,
            ("row_registers_128x2_v8x32 needs about 424 registers a thread; sm_90a gives 255 to each of 256"),
        ),
        (
            {"threads_per_row": 96},
            NORM,
            Reason.COMBINATION,
            (
                "row_registers_96x2_v8x4: 96 threads a row and 192 a CTA; rows are reduced by powers of two of "
                "threads, in whole warps of 32"
            ),
        ),
        (
            {"vector_elements": 4},
            NORM,
            Reason.TILE,
            "row_registers_128x2_v4x4: vectors of 4 elements of bfloat16; there are 1 and 8, which are 16 bytes",
        ),
        (
            {},
            row_operation("bf16_e4m3_block_quantize"),
            Reason.TILE,
            (
                "row_registers_128x2_v8x4: 4096 columns at once; a block of scales has 128, and a kernel's threads "
                "have one block at a time"
            ),
        ),
        (
            {},
            row_operation("bf16_rotary"),
            Reason.OPERATION,
            "row_registers_128x2_v8x4: row_registers computes no bf16_rotary",
        ),
        (
            {"family": "row_scalar"},
            NORM,
            Reason.COMBINATION,
            "row_scalar has one candidate of bf16_rms_norm, row_scalar_256x1_v1x4",
        ),
    ],
)
def test_a_candidate_that_cannot_be_built_is_refused_with_its_figures(change, operation, why, text):
    family = change.pop("family", GOOD.family)
    assert reason(Candidate(family, replace(GOOD.knobs, **change)), operation) == (why, text)


def test_shared_memory_and_features_are_looked_at():
    small = replace(H200, smem_bytes_per_block=64)
    text = "row_registers_128x2_v8x4 needs 96 bytes of shared memory; sm_90a gives 64 a block; take fewer threads"
    assert reason(GOOD, target=small) == (Reason.SMEM, text)
    other = load_target("a100")
    text = "row_registers_128x2_v8x4: row_registers needs dependent_launch, which a100 (sm_80) has not"
    assert reason(GOOD, target=other) == (Reason.FEATURE, text)
    with pytest.raises(CandidateError, match="no fallback family of the kind rows compiles for sm_80"):
        fallback(NORM, other)
    without = replace(H200, features=tuple(x for x in H200.features if x is not Feature.FP8), fp8_flops_per_s=None)
    text = f"{GOOD.name}: bf16_e4m3_quantize needs fp8, which h200 (sm_90a) has not"
    assert reason(GOOD, row_operation("bf16_e4m3_quantize"), without) == (Reason.FEATURE, text)


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(CandidateError, match=r"no kernel family 'x'; there are: .*, row_looped, row_registers, "):
        check(replace(GOOD, family="x"), NORM, H200)


@pytest.mark.parametrize("target", [H200, THOR])
@pytest.mark.parametrize("operation", some(row_operations(), 12))
def test_every_operation_has_kernels_for_aligned_rows_and_one_for_all(operation, target):
    general = fallback(operation, target)
    assert isinstance(check(general, operation, target), Accepted)
    assert rows_family_of(general).limits(general, operation) == RowLimits()
    found = legal(operation, target)
    assert len(set(found)) == len(found)
    for cols in (128, 4096, 16384, 2**30):
        assert any(rows_family_of(x).limits(x, operation).takes(cols) for x in found)
    limits = {rows_family_of(x).limits(x, operation) for x in found}
    assert {(x.alignment_bytes, x.cols_multiple) for x in limits} == {(16, 8)}


def test_the_space_is_what_families_enumerate():
    verdicts = dict(judge(NORM, H200, Patterns()))
    assert len(verdicts) == 31
    assert all(x.family in ("row_registers", "row_looped") for x in verdicts)
    assert {x.family for x in legal(row_operation("fp16_rotary"), H200)} == {"row_rotary"}
    assert all(x.knobs.columns == 128 for x in legal(row_operation("bf16_e4m3_block_quantize"), H200))


@pytest.mark.parametrize(
    ("tag", "num_reads"),
    [("bf16_rms_norm", 2), ("bf16_layer_norm", 3), ("bf16_e4m3_layer_norm", 4), ("bf16_e4m3_quantize", 2)],
)
def test_a_looped_kernel_reads_once_for_each_step(tag, num_reads):
    operation = row_operation(tag)
    looped = row_candidate("row_looped", 256, 1, 8, 2)
    assert rows_family_of(looped).num_reads(looped, operation) == num_reads
    assert rows_family_of(GOOD).num_reads(GOOD, operation) == 1


def test_a_tensor_is_read_for_its_scale_and_for_its_result():
    operation = row_operation("bf16_e4m3_tensor_quantize")
    found = legal(operation, H200)
    assert {x.family for x in found} == {"row_registers"}
    assert {(x.knobs.threads_per_row, x.knobs.rows_per_cta) for x in found} == {(128, 1), (256, 1)}
    assert {rows_family_of(x).num_reads(x, operation) for x in (*found, fallback(operation, H200))} == {2}


def test_rows_in_registers_are_no_wider_than_those():
    family = rows_family_of(GOOD)
    assert family.limits(GOOD, NORM) == RowLimits(16, 8, 4096)
    pairs = next(x for x in row_operations() if x.function == SILU_MUL)
    assert family.limits(GOOD, pairs) == RowLimits(16, 8)
