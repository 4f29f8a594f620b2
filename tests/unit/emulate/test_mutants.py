"""Mutants have one fault each, and nothing else is changed."""

from collections import Counter

import pytest

from aot.emulate.mutants import NOTHING, Change, mutants
from aot.emulate.ptx import Immediate, Register, parse_module

TEXT = """
.visible .entry k(.param .u64 a)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	@%p1 bra $L1;
	mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;
	bar.sync 0;
$L1:
	mbarrier.arrive.expect_tx.shared.b64 _, [%r1], %r3;
	fence.proxy.async.shared::cta;
	ret;
}
"""
KERNEL = parse_module(TEXT)["k"]


def of(change):
    (found,) = [x for x in mutants(KERNEL) if x.change is change]
    return found.kernel


def test_each_synchronising_instruction_has_its_mutants():
    counts = Counter(x.change for x in mutants(KERNEL))
    wanted = (Change.WAIT, Change.PARITY, Change.THREAD_BARRIER, Change.ARRIVAL, Change.BYTES_LESS, Change.BYTES_MORE)
    assert counts == Counter((*wanted, Change.PROXY_FENCE))


@pytest.mark.parametrize(
    ("change", "at"), [(Change.THREAD_BARRIER, 2), (Change.ARRIVAL, 3), (Change.PROXY_FENCE, 4)], ids=str
)
def test_what_is_taken_out_does_nothing_and_the_rest_stays(change, at):
    found = of(change).instructions
    assert found[at].opcode == NOTHING
    assert (*found[:at], *found[at + 1 :]) == (*KERNEL.instructions[:at], *KERNEL.instructions[at + 1 :])


def test_a_wait_that_is_taken_out_is_always_answered():
    found = of(Change.WAIT).instructions[1]
    assert (found.opcode, found.operands) == ("mov.pred", (Register("%p1"), Immediate(1)))


def test_a_shifted_parity_is_computed_in_front_and_branches_go_on_where_they_did():
    found = of(Change.PARITY).instructions
    assert (found[1].opcode, found[1].operands[1:]) == ("xor.b32", (Register("%r2"), Immediate(1)))
    assert found[2].operands[2] == found[1].operands[0]
    assert (KERNEL.instructions[0].target, found[0].target) == (3, 4)
    assert len(found) == len(KERNEL.instructions) + 1


def test_a_changed_count_is_what_the_barrier_is_told():
    found = of(Change.BYTES_LESS).instructions
    assert (found[3].opcode, found[3].operands[1:]) == ("sub.s32", (Register("%r3"), Immediate(16)))
    assert found[4].operands[-1] == found[3].operands[0]
