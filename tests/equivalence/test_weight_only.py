"""Kernels of packed weights are executed in the interpreter: formats, types, ragged problems, NaN around x."""

from itertools import product

import numpy as np
import pytest

from aot.core.weight_format import FORMATS
from aot.emulate.faults import Fault, FindingKind
from aot.emulate.mutants import Change, mutants
from aot.emulate.program import Program
from aot.emulate.ptx import parse_module
from aot.emulate.schedule import Mode, Schedule
from tests.compiling import EVERY
from tests.weight_only import ELEMENTS, Case, execute, ptx_of

pytestmark = pytest.mark.slow
FEW, MORE, MOST, ONE = (2, 8, 4, 2, 2), (3, 16, 2, 2, 1), (1, 64, 2, 2, 1), (2, 1, 4, 3, 1)
GATE = (4, 16, 2, 2, 1)
"""Tiles of rows, rows of x, warps, stages, blocks of k in a stage."""
BF16_ALONE = "mxfp4rows"
"""Of which x is bfloat16: powers of two that multiply codes do not fit float16."""
EACH = [
    *(Case(form.name, element, FEW) for form in FORMATS for element in ELEMENTS if form.name != BF16_ALONE),
    *(Case(BF16_ALONE, "BFloat16", x, "sm_110a") for x in (FEW, MORE, MOST, ONE)),
    *(Case(form, element, MORE) for form in ("int4g128", "nvfp4", "nvfp4rows", "e4m3") for element in ELEMENTS),
    *(Case(form, "BFloat16", MOST) for form in ("int4g64", "nvfp4", "nvfp4rows")),
    *(Case("nvfp4rows", element, FEW, "sm_110a") for element in ELEMENTS),
    *(Case(form, "BFloat16", ONE, "sm_110a") for form in ("int4g32", "nvfp4", "nvfp4rows", "mxfp4", "int8")),
]
GATES = [
    Case("int8", "BFloat16", FEW, gate="swiglu"),
    Case("nvfp4rows", "BFloat16", GATE, "sm_110a", "swiglu"),
    *([Case(x.form, x.element, GATE, gate="swiglu") for x in EACH if x.sizes == FEW] if EVERY else ()),
    *([Case("nvfp4", "Float16", GATE, gate="geglu")] if EVERY else ()),
]
"""Products of two weights, whose rings are those of one."""
ALIKE = ("int4g64", "e5m2")
"""Formats that are another one's but for a number: `make walk` executes them."""
CASES = (
    EACH
    if EVERY
    else [
        *(Case(form.name, (*ELEMENTS,)[i % 2], FEW) for i, form in enumerate(FORMATS[:-1]) if form.name not in ALIKE),
        Case(BF16_ALONE, "BFloat16", FEW, "sm_110a"),
        Case("int4g128", "BFloat16", MORE),
        Case("nvfp4", "BFloat16", MOST),
        *(Case(form, "BFloat16", ONE, "sm_110a") for form in ("nvfp4rows", "mxfp4")),
    ]
)
"""Each format once, each number of warps, and each chip."""
MODES = tuple(x for x in Mode if x is not Mode.BEHIND_ITSELF)
LARGEST_ERROR = 2.0**-15
"""In standard deviations of a sum. What the offset of int4 adds, and takes again, is up to 66 times as large as what is
left: of float16 8e-6 was met, and 1e-6 of formats without."""


def problems(case):
    """Return sizes at and past the edges of tiles and blocks; the ring turns round in the third; two atoms of rows."""
    tile, quantum = case.tile, case.tile.form.quantum
    ring = 128 * tile.num_warps * tile.blocks * tile.num_stages
    return [
        (1, 1, quantum),
        (min(3, tile.columns), tile.rows - 3, 3 * quantum),
        (tile.columns + 1, tile.rows + 7, -(-ring // quantum) * quantum + quantum),
        *([(1, 128 + 33, 64 + quantum)] if tile.form.in_rows else []),
    ]


def what_is_wrong(case, sizes, schedule, *, is_constant, seed=0, program=None):
    """List what is wrong with an execution: a fault, the result, findings but reads of what is promised constant."""
    try:
        found = execute(case, *sizes, schedule, seed=seed, is_constant=is_constant, program=program)
    except Fault as fault:
        return [str(fault)]
    wrong = [f"{x.where}: {x.text}" for x in found.findings if x.kind.is_fault or x.kind is FindingKind.EARLY]
    if is_constant:
        wrong = [x for x in wrong if not x.endswith(": reads b")]
    return wrong if found.error < LARGEST_ERROR else [*wrong, f"error {found.error:.2g}"]


@pytest.mark.parametrize("case", [*CASES, *GATES], ids=str)
def test_every_format_is_right(case):
    for i, sizes in enumerate(problems(case)):
        is_every = EVERY and case in CASES
        for schedule in [Schedule(x, i) for x in MODES] if is_every else [Schedule(MODES[i * 4 % len(MODES)], i)]:
            wrong = what_is_wrong(case, sizes, schedule, is_constant=bool(i % 2), seed=i)  # an odd one has a bias
            assert wrong == [], (sizes, schedule)


CHANGES = (Change.WAIT, Change.ARRIVAL, Change.BYTES_LESS, Change.BYTES_MORE, Change.COUNT, Change.FRONT, Change.PARITY)


@pytest.mark.skipif(not EVERY, reason="many executions: `make walk`")
def test_faults_of_the_ring_are_seen():
    case = Case("int4g128", "BFloat16", ONE)
    sizes, unseen = problems(case)[2], []
    ((name, kernel),) = parse_module(ptx_of(case)).items()
    for mutant in (x for x in mutants(kernel) if x.change in CHANGES):
        for mode, is_constant in product((Mode.RANDOM, Mode.HOLD_LOADS, Mode.HOLD_FRONT, Mode.EAGER), (False, True)):
            program = name, Program(mutant.kernel)
            if what_is_wrong(case, sizes, Schedule(mode, 1), is_constant=is_constant, program=program):
                break
        else:
            unseen.append(f"{mutant.change.value}: {mutant.line}: {mutant.text}")
    assert unseen == []


def test_rows_of_no_x_are_not_written():
    """Nor is more of D than its columns, where rows of the weight fill the last tile: `execute` looks."""
    case = Case("int8", "Float16", FEW)
    assert np.isfinite(execute(case, 5, 17, 16).error)
