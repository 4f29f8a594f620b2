import pytest

from aot.compile.workplace import Workplace, compile_shipped
from aot.core.candidate import KernelKey, changed, gemm_candidate
from aot.core.target import load_target
from tests.compiling import STORE, compile_kernels
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = gemm_candidate("sm90_one_tile", 64, 128, 4, 1, use_tma_store=False)
ALONE = gemm_candidate("sm90_one_tile", 64, 24, use_tma_store=False)


@pytest.mark.slow
def test_kernels_of_several_widths_ship_as_one_object():
    keys = [KernelKey(BF16, x) for x in (changed(TILE, tile_n=104), ALONE, TILE)]
    compile_kernels([KernelKey(BF16, ALONE), KernelKey(BF16, changed(TILE, schedule="widths"))], H200)
    artifacts, failures = compile_shipped(keys, H200, Workplace(STORE, progress=False))
    assert not failures
    assert [x.kernel.key for x in artifacts] == keys
    assert [x.kernel.name for x in artifacts] == [key.name for key in keys]
    assert [(x.kernel.num_narrower, x.kernel.first_order) for x in artifacts] == [(3, 27), (None, 0), (None, 0)]
    narrow, alone, wide = artifacts
    assert (narrow.path, narrow.kernel.object_sha256) == (wide.path, wide.kernel.object_sha256)
    assert alone.kernel.entry_symbol.count("24_c1x1") == 1
    assert alone.path != wide.path
