"""What the device code of kernels over groups says about gathered rows: which bytes it reads, and what it fences."""

import re

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.core.target import load_target
from tests.compiling import compile_kernels

pytestmark = pytest.mark.slow

H200 = load_target("h200")
WIDE = gemm_candidate("sm90_grouped", 128, 128, schedule="cooperative")
GATHERED = [
    KernelKey(Operation.BF16_KK_GATHERED, gemm_candidate("sm90_grouped", 64, 16, schedule="pingpong")),
    KernelKey(Operation.E4M3_BF16_KK_GATHERED_SWIGLU, WIDE),
    KernelKey(
        Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU,
        gemm_candidate("sm90_grouped_block_scale", 64, 128, schedule="pingpong"),
    ),
]
ADJACENT = KernelKey(Operation.BF16_KK_GROUPED, gemm_candidate("sm90_grouped", 128, 256, 2, schedule="cooperative"))
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\d+)(?:, (%r\d+))?;")
STEPS = re.compile(r"mbarrier\.try_wait|fence\.proxy\.async\.shared::cta|wgmma\.mma_async")
WAIT, FENCE, MULTIPLY = "mbarrier.try_wait", "fence.proxy.async.shared::cta", "wgmma.mma_async"


@pytest.fixture(scope="module")
def ptx():
    keys = [*GATHERED, ADJACENT]
    return {key: x.ptx_path.read_text() for key, x in zip(keys, compile_kernels(keys, H200), strict=True)}


def steps_to(text, register):
    """Return the instructions that give a register its value, each with its last operand, those of its parts too."""
    values = {}
    for instruction, given, operands in re.findall(r"^\t(\S+) +\t(%r\d+), ([^;\n]*);", text, re.MULTILINE):
        values.setdefault(given, []).append((instruction, operands))
    found, waiting, seen = set(), [register], {register}
    while waiting:
        for instruction, operands in values.get(waiting.pop(), ()):
            found.add((instruction, operands.split(", ")[-1]))
            parts = set(re.findall(r"%r\d+", operands)) - seen
            seen |= parts
            waiting += parts
    return found


@pytest.mark.parametrize("key", GATHERED, ids=lambda x: x.name)
def test_a_copy_of_a_gathered_row_reads_what_is_left_of_k(ptx, key):
    """Where k ends inside a piece of 16 bytes the copy's size is what is left, and not all or nothing."""
    copies = COPY.findall(ptx[key])
    assert len(copies) == len(re.findall(r"\bcp\.async\.c[ag]\b", ptx[key])) > 0
    for size, register in copies:
        assert size == "16"
        steps = steps_to(ptx[key], register)
        assert {("min.s32", str(16 // key.operation.a.element.num_bytes)), ("max.s32", "0")} <= steps


def before_products(text):
    """Return the steps of STEPS in front of each run of products, the last two of them."""
    steps = STEPS.findall(text)
    firsts = [i for i, x in enumerate(steps) if x == MULTIPLY and steps[i - 1] != MULTIPLY]
    return [steps[i - 2 : i] for i in firsts]


@pytest.mark.parametrize("key", GATHERED, ids=lambda x: x.name)
def test_products_of_gathered_rows_stand_behind_a_wait_and_a_proxy_fence(ptx, key):
    found = before_products(ptx[key])
    assert found
    assert found == [[WAIT, FENCE]] * len(found)


def test_products_of_rows_that_tma_loads_need_no_fence(ptx):
    found = before_products(ptx[ADJACENT])
    assert found
    assert [x[1] for x in found] == [WAIT] * len(found)
