"""Groups of rows by packed weights are executed in the interpreter: ragged and empty groups, an index, weights apart.

What lies behind the last group's rows is NaN, and each case is executed once more with NaN in all rows of a group: no
other group's bits may change. `make walk` executes every operation, and its fallback.
"""

import numpy as np
import pytest

from aot.compile.tuned import tuned_kernel
from aot.core.candidate import Candidate, KernelKey, gemm_candidate
from aot.core.grouping import Grouping
from aot.core.numerics import poison
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.target import load_target
from aot.core.weight_format import WeightParts
from aot.core.weight_packing import pack, unpack
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.families._sum_order import order_of
from aot.families.sm90_grouped_weight_only import FAMILY as OF_MANY
from aot.families.sm90_weight_only import is_promoted
from aot.families.weight_only import WeightOnlyKnobs
from aot.families.weight_only_simt import FAMILY as FALLBACK
from aot.kinds.gemm.edge_groups import positions_of
from aot.kinds.gemm.edge_shapes import shape_of
from aot.kinds.gemm.group_inputs import GroupSizes
from aot.kinds.trials import trial_of
from aot.measure.verify import EdgeCase, Verifier
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.equivalence.test_separate_groups import OF_B, REVERSED, Separate, of_groups

pytestmark = pytest.mark.slow
GROUPED = [x for x in Operation if x.types.weight is not None and x.grouping.groups_rows]
EIGHT, MORE = (Candidate("weight_only", WeightOnlyKnobs(1, x, 2, 2, 4)) for x in (8, 16))
"""Kernels with room for so many rows; a group of each case has more than 8."""
MANY, IN_TURNS = (
    gemm_candidate(OF_MANY.name, 128, 48, swap_ab=True, use_tma_store=False, schedule=x) for x in ("", "pingpong")
)
"""Kernels of Hopper's `wgmma` for many rows of each group; of the second two warpgroups take blocks of k in turns."""
SOME = (
    (Operation.BF16_MXFP4_KK_GROUPED, EIGHT),
    (Operation.FP16_NVFP4_ROWS_KK_GATHERED, MORE),
    (Operation.BF16_MXFP4_ROWS_KK_GATHERED, EIGHT),
    (Operation.BF16_NVFP4_KK_GROUPED, MANY),
)
OF_HOPPER = [x for x in GROUPED if x.types in OF_MANY.types and x.grouping in OF_MANY.groupings]
CASES = [*SOME, *((x, y) for x in GROUPED for y in (EIGHT, None) if EVERY), *((x, MANY) for x in OF_HOPPER if EVERY)]
CASES += [(x, IN_TURNS) for x in OF_HOPPER if EVERY and is_promoted(x)]
SEED = 5
EXTENTS = 6, 24, 160
"""m, n and k of each of 7 groups: k is no multiple of a block's 128."""


def ragged(trial, case):
    """Draw operands with an empty group and one of more rows than a tile has; give the groups' ends and rows too."""
    for seed in range(SEED, SEED + 99):
        drawn = trial.draw(case, np.random.default_rng(seed))
        ends = positions_of(drawn, Argument.OFFSETS)
        counts = np.diff(ends, prepend=0)
        if 0 in counts and counts.max() > 8:
            return drawn, ends, counts
    pytest.fail("no draw has an empty group and a large one")


@pytest.mark.parametrize(("operation", "candidate"), CASES, ids=lambda x: getattr(x, "tag", "") or str(x and x.name))
def test_each_row_is_multiplied_by_its_experts_weight(operation, candidate, tmp_path):
    candidate = candidate or next(iter(FALLBACK.candidates(operation, load_target("thor"))))
    target = "h200" if candidate.family == OF_MANY.name else "thor"
    kernels = emulated_set([KernelKey(operation, candidate)], target, tmp_path)
    gpu, trial = EmulatedGpu(kernels.target.l2_bytes), trial_of(operation)
    library = Separate(kernels.library, [DeviceCode.of(x) for x in kernels.products], gpu, kernels.target)
    library.apart = OF_B
    case = shape_of(tuned_kernel(kernels.products[0].kernel), EXTENTS, sizes=GroupSizes.SHORT)
    drawn, ends, counts = ragged(trial, case)

    def run(operands):
        edge = EdgeCase(gpu, library, case, np.random.default_rng(SEED), 0, lambda *_: dict(operands))
        verifier = Verifier(gpu, library, np.random.default_rng(SEED), num_guards=0)
        return verifier._run(0, edge, edge.bound)

    found = run(drawn)
    assert trial.check(case, of_groups(operation, drawn, REVERSED, None))(found).fault == ""
    if operation.grouping is Grouping.GATHERED:
        return  # of which rows are no group's alone
    group = int(np.argmax(counts))
    rows = slice(int(ends[group] - counts[group]), int(ends[group]))
    damaged = drawn[Argument.A].copy()
    damaged[0, rows] = poison(operation.a.element)
    again = run(drawn | {Argument.A: damaged})
    kept = np.ones(found[Argument.D].shape[1], np.bool_)
    kept[rows] = False
    assert np.array_equal(again[Argument.D][0, kept], found[Argument.D][0, kept])
    assert not np.array_equal(again[Argument.D][0, rows], found[Argument.D][0, rows])


ROOMS = [Candidate("weight_only", WeightOnlyKnobs(*x)) for x in ((1, 8, 2, 2, 4), (1, 16, 3, 3, 4), (1, 32, 2, 2, 4))]
"""Kernels with room for 8 to 32 rows, with two or three tiles and stages."""


LONG = 6, 48, 1024
TWO_WAYS = (Operation.BF16_INT4_G128_KK_GROUPED,)
"""Of which kernels with room for 8 rows have an order of their own: they take the codes' offset from the sums."""
ONE_WAY = (
    *(Operation.BF16_INT4_G128_ZEROS_KK_GROUPED, Operation.BF16_NVFP4_KK_GROUPED, Operation.BF16_NVFP4_ROWS_KK_GROUPED),
    *(Operation.BF16_MXFP4_KK_GROUPED, Operation.FP16_MXFP4_KK_GROUPED),
    *(Operation.BF16_INT8_KK_GROUPED, Operation.BF16_E4M3_KK_GROUPED),
)


def cancelled(operation, drawn):
    """Have the second half of k undo the first, so that D is nothing but what additions are off by."""
    form, (_, n, k), found = operation.types.weight, LONG, drawn[Argument.B].copy()
    for packed in found:
        parts = unpack(form, packed, n, k)
        halves = (None if x is None else np.tile(x[:, : x.shape[1] // 2], 2) for x in vars(parts).values())
        packed[:] = pack(form, WeightParts(*halves))
    x = drawn[Argument.A].copy()
    x[..., k // 2 :] = x[..., : k // 2] ^ 0x8000
    return drawn | {Argument.A: x, Argument.B: found, Argument.BIAS: np.zeros_like(drawn[Argument.BIAS])}


@pytest.mark.walk
@pytest.mark.parametrize("operation", [*TWO_WAYS, *ONE_WAY], ids=lambda x: x.tag)
def test_kernels_of_one_order_give_the_same_bits(operation, tmp_path):
    keys = [KernelKey(operation, x) for x in ROOMS]
    kernels = emulated_set(keys, "thor", tmp_path)
    gpu, trial = EmulatedGpu(kernels.target.l2_bytes), trial_of(operation)
    library = EmulatedKernels(kernels.library, [DeviceCode.of(x) for x in kernels.products], gpu, kernels.target)
    case = shape_of(tuned_kernel(kernels.products[0].kernel), LONG, sizes=GroupSizes.SHORT)
    drawn, found = cancelled(operation, ragged(trial, case)[0]), []
    for index in range(len(keys)):
        edge = EdgeCase(gpu, library, case, np.random.default_rng(SEED), 0, lambda *_: dict(drawn))
        verifier = Verifier(gpu, library, np.random.default_rng(SEED), num_guards=0)
        found.append(verifier._run(index, edge, edge.bound)[Argument.D])
    assert (found[0] & 0x7FFF).astype(bool).mean() > 0.2  # which the order of additions decides
    orders = [order_of(x) for x in keys]
    assert len(set(orders)) == (2 if operation in TWO_WAYS else 1)
    assert all(np.array_equal(x, found[1]) for x, order in zip(found, orders, strict=True) if order == orders[1])
    assert len({x.tobytes() for x in found}) == len(set(orders))
