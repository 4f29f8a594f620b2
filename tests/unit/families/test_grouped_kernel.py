"""What kernels over groups stand on of quack, and what their device code says about gathered rows."""

import inspect
import re

import pytest
from quack.gemm_sm90 import GemmSm90
from quack.gemm_sm100 import GemmSm100
from quack.tile_scheduler import TileScheduler, VarlenMTileScheduler
from quack.varlen_utils import VarlenManager

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import _group_rows, _grouped_block_kernel, _grouped_kernel
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


def parameters(function):
    return [x for x in inspect.signature(inspect.unwrap(function)).parameters if x != "cls"]


@pytest.mark.parametrize(
    ("owner", "module", "name"),
    [
        (VarlenMTileScheduler, _group_rows, "create"),
        (VarlenMTileScheduler, _group_rows, "_get_num_m_blocks"),
        (TileScheduler, _group_rows, "get_split_k_tile_range"),
        (GemmSm90, _grouped_kernel, "_make_gather_A_copy"),
        (GemmSm90, _grouped_block_kernel, "mma"),
    ],
)
def test_what_is_replaced_of_quack_is_as_it_was(owner, module, name):
    assert parameters(getattr(owner, name)) == module.REPLACED[name]


@pytest.mark.parametrize(("gemm", "count"), [(GemmSm90, 5), (GemmSm100, 9)])
def test_quacks_kernels_take_b_and_its_factors_where_places_are_put_in_front_of_them(gemm, count):
    begin = ["self", *_grouped_kernel.PARAMETERS[:count]]
    assert parameters(gemm.kernel)[: len(begin)] == begin
    assert len(_grouped_kernel.PARAMETERS) == 9


def test_quack_finds_the_b_of_a_group_and_its_factors_by_an_index_alone():
    """What `Placed` stands for: were they read in another way too, their place would be left out."""
    source = inspect.getsource(VarlenManager.offset_batch_B)
    assert "mB_nk = mB_nkl[None, None, batch_idx]" in source
    assert "return mSFB_chunks[None, None, None, batch_idx]" in inspect.getsource(VarlenManager.offset_batch_SFB)
    assert len(re.findall(r"\bmSFB_chunks\b(?!:)", inspect.getsource(GemmSm100.kernel))) == 1
    for gemm in (GemmSm90, GemmSm100):
        uses = re.findall(r"mB_nkl\b(?!:)", inspect.getsource(gemm.kernel))
        in_extents = re.findall(r"cute\.size\(mB_nkl, mode=", inspect.getsource(gemm.kernel))
        assert len(uses) == len(in_extents) + 1


def test_quack_finds_the_factors_of_a_groups_rows_where_the_toolchain_puts_them():
    source = inspect.getsource(VarlenManager.offset_batch_SFA)
    assert "offset_tile = params.cu_seqlens_m[batch_idx] // tile + batch_idx" in source
    assert "tile = 128" in source
