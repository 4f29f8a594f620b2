"""What becomes of mutants: each is executed until something shows it, and what nothing shows is listed."""

import re

import pytest

from aot.core.errors import VerificationError
from aot.emulate import sight as module
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.mutants import Change
from aot.emulate.results import RESULT_VERSION, CaseResult, FoundFinding, KernelResult
from aot.emulate.schedule import Schedule
from aot.emulate.sight import MODES, STRUCTURAL, Sight, Sighting, num_mutants, schedules, sight
from aot.select.selector import fallback_key
from tests.emulated import emulated_set, target_of, with_ptx
from tests.unit.twins import BF16

RACE = FoundFinding("read that is not ordered", "line 3: ld", "warp 1, behind warp 0", "random 0", 7, is_fault=True)
NOTE = FoundFinding("access before griddepcontrol.wait", "line 4: ld", "reads b", "lazy 0", 5, is_fault=False)


def result(*findings, fault="", error=""):
    case = CaseResult("m1 n8 k8", 1, 1e-3, 0.25, fault, "random 0", findings, 2000, 0.5, {}, {})
    return KernelResult(RESULT_VERSION, "k", "simt", "bf16_kk", "0" * 64, error, 1, () if error else (case,), ())


@pytest.mark.parametrize(
    ("of", "shown"),
    [
        (result(), ""),
        (result(error="does not know brev.b32"), "does not know brev.b32"),
        (result(RACE, fault="deadlock: 3 warps"), "deadlock: 3 warps"),
        (result(RACE), "read that is not ordered: warp 1, behind warp 0"),
        (result(NOTE), ""),
        (result(FoundFinding(NOTE.kind, "line 5: ld", "reads a", "lazy 0", 1, is_fault=False)),
         "access before griddepcontrol.wait: reads a"),
        (result(NOTE, RACE), "read that is not ordered: warp 1, behind warp 0"),
    ],
    ids=["right", "unknown", "fault", "race", "the right kernel's note", "a note of its own", "behind a note"],
)  # fmt: skip
def test_what_shows_a_mutant(of, shown):
    assert module._shown(of, frozenset({(NOTE.kind, NOTE.where)})) == shown


def test_mutants_are_counted_by_what_was_changed_without_those_that_are_never_executed():
    found = Sighting(Change.WAIT, 3, "mbarrier.try_wait", "deadlock", is_reached=True)
    missed = Sighting(Change.WAIT, 9, "mbarrier.try_wait", "", is_reached=True)
    idle = Sighting(Change.ARRIVAL, 12, "mbarrier.arrive", "", is_reached=False)
    fence = Sighting(Change.PROXY_FENCE, 14, "fence.proxy.async", "race", is_reached=True)
    seen = Sight("k", (fence, found, missed, idle))
    assert list(seen.counts().items()) == [(Change.WAIT, (1, 2)), (Change.PROXY_FENCE, (1, 1))]
    assert seen.missed == (missed,)


def test_the_first_schedule_is_any_order_and_each_next_one_holds_something_back():
    assert len(set(MODES)) == 8
    assert MODES[0].value == "random"
    assert set(MODES) >= {"hold_products", "hold_loads", "hold_stores", "strict"}


def test_more_seeds_are_more_schedules_of_each_mode():
    assert schedules(1) == tuple(Schedule(mode, seed) for seed, mode in enumerate(MODES))
    found = schedules(3)
    assert found[:8] == schedules(1)
    assert [x.mode for x in found] == [*MODES] * 3
    assert len({x.seed for x in found}) == 24


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """Make a set of the general kernel, which has two barriers of threads and nothing else to take out."""
    return emulated_set([fallback_key(BF16, target_of("thor"))], "thor", tmp_path_factory.mktemp("sight"))


FEW = schedules(1)[:3]


@pytest.fixture
def executions(monkeypatch):
    """Try few schedules; collect those of what is executed, and the limits of its instructions."""
    monkeypatch.setattr(module, "MODES", MODES[: len(FEW)])
    real, found = Executor.execute, []

    def execute(self, name):
        found.append((self._options.schedules, self._options.limit))
        return real(self, name)

    monkeypatch.setattr(Executor, "execute", execute)
    return found


@pytest.mark.slow
def test_each_mutant_is_executed_until_something_shows_it(general, executions):
    (name,) = general.names
    assert num_mutants(general, name) == 2
    written, read = sight(general, name, [(3, 5, 40)])
    assert [(x.change, x.text) for x in (written, read)] == [(Change.THREAD_BARRIER, "bar.sync 0")] * 2
    assert written.line < read.line
    assert (written.is_reached, read.is_reached) == (True, True)
    assert "wrong result on bf16_kk m3 n5 k40" in written.shown_by
    assert Sight(name, (written, read)).counts() == {Change.THREAD_BARRIER: (2, 2)}
    # The right kernel under every schedule, then each mutant under the first, that is taken for endless early.
    assert [x for x, _ in executions[: len(FEW)]] == [(x,) for x in FEW]
    mutants = executions[len(FEW) :]
    assert [x for x, _ in mutants] == [(FEW[0],)] * 2
    right = Executor(general, ExecutionOptions(FEW[:1], (3, 5, 40))).execute(name)
    assert {limit for _, limit in mutants} == {module.ENDLESS * right.num_instructions}


@pytest.mark.walk
@pytest.mark.slow
def test_what_nothing_shows_was_tried_under_every_schedule(general, executions):
    """With one block of k nobody writes the block again, so that the barrier in front of that is not missed."""
    (name,) = general.names
    written, read = sight(general, name, [(3, 5, 8)])
    assert written.shown_by
    assert (read.is_reached, read.shown_by) == (True, "")
    assert Sight(name, (written, read)).missed == (read,)
    assert [x for (x,), _ in executions[-len(FEW) :]] == list(FEW)


@pytest.mark.slow
def test_what_no_order_changes_is_tried_under_one_schedule(general, executions, monkeypatch):
    assert Change.SWIZZLE in STRUCTURAL
    assert not STRUCTURAL & {Change.WAIT, Change.ARRIVAL, Change.PARITY, Change.COUNT, Change.BYTES_LESS}
    monkeypatch.setattr(module, "STRUCTURAL", {Change.THREAD_BARRIER})
    (name,) = general.names
    _, read = sight(general, name, [(3, 5, 8)])
    assert not read.shown_by
    assert [x for (x,), _ in executions[len(FEW) :]] == [FEW[0]] * 2


@pytest.mark.slow
def test_an_instruction_that_is_not_executed_is_told_apart(general, executions, tmp_path):
    never = "setp.ne.u32 %never, 0, 0;\n@%never bra $NEVER;\nbra $BEHIND;\n$NEVER:\nfence.proxy.async;\n$BEHIND:\n"

    def edit(text):
        text = re.sub(r"(\.reg \.pred\s)", r".reg .pred %never;\n\1", text, count=1)
        return re.sub(r"(bar\.sync\s+0;)", rf"{never}\1", text, count=1)

    kernels = with_ptx(general, edit, tmp_path)
    found = list(sight(kernels, *kernels.names, [(3, 5, 8)]))
    assert (found[0].change, found[0].is_reached) == (Change.PROXY_FENCE, False)
    assert Change.PROXY_FENCE not in Sight("k", tuple(found)).counts()
    assert len(executions) == len(FEW) + 1 + len(FEW)  # the kernel's, and those of the two barriers


@pytest.mark.slow
def test_a_kernel_that_is_wrong_by_itself_has_no_mutants(general, tmp_path):
    kernels = with_ptx(general, lambda x: re.sub(r"bar\.sync\s+0;", "", x), tmp_path)
    with pytest.raises(VerificationError, match=r"is not right by itself: .*; execute it without --mutants"):
        next(sight(kernels, *kernels.names, [(3, 5, 40)]))
