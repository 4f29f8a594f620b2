"""What the mend of NVIDIA's TGV kernel stands on, and that its device code has the wait that was missing."""

import inspect
import re

import pytest
from cutlass.operators.providers.cutedsl.gemm.implementations.sm100_tgv_gemm_impl import TgvGemmKernel

from aot.core.candidate import KernelKey
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families._tgv_kernel import BARRIER_USES, REPLACED
from aot.families.sm100_tgv import TMEM_COLUMNS
from tests.compiling import compile_kernels
from tests.unit.accepted import named

pytestmark = pytest.mark.slow

THOR = load_target("thor")


def test_what_is_replaced_of_nvidias_kernel_is_as_it_was():
    method = inspect.unwrap(TgvGemmKernel.mma_warp)
    assert list(inspect.signature(method).parameters) == REPLACED["mma_warp"]
    uses = re.findall(r"cute\.arch\.(\w+)\(\s*tmem_alloc_result_bar", inspect.getsource(method))
    assert tuple(uses) == BARRIER_USES
    assert len(re.findall(r"\btmem_alloc_result_bar\b", inspect.getsource(method))) == len(BARRIER_USES) + 1


@pytest.mark.parametrize("name", ["64x8_c1x1_st4", "64x32_c1x1_st8"])
def test_the_mma_warp_awaits_the_allocation_before_it_arrives_for_the_release(name):
    key = KernelKey(Operation.BF16_KK, named(f"sm100_tgv_{name}_direct_swap"))
    (artifact,) = compile_kernels([key], THOR)
    text = artifact.ptx_path.read_text()
    of_warp = text[text.index("tcgen05.alloc.") : text.index("tcgen05.dealloc.")]
    (columns,) = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\ttcgen05\.alloc\.\S+ \t\[%r\d+\], \1;", text)
    assert columns[1] == str(TMEM_COLUMNS)
    steps = re.findall(r"mbarrier\.(arrive|try_wait\.parity)\.shared\.b64 \S+, \[(%r\d+)\], (\S+?)[,;]", of_warp)
    barrier = steps[0][1]
    found = [(step, value) for step, at, value in steps if at == barrier]
    assert [x[0] for x in found] == ["arrive", "try_wait.parity", "arrive", "try_wait.parity"]
    assert [found[1][1], found[3][1]] == ["0", "1"]
