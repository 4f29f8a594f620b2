"""Launches through the library's own host code: what it asks of CUDA arrives whole, or is refused as CUDA would."""

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.errors import DeviceError
from aot.core.operands import GemmCall, Matrix, Tensor, operands
from aot.core.problem import Problem
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import Clear, KernelLaunch
from aot.emulate.host import EmulatedKernels
from aot.kinds.rows.call import RowCall
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.signature import RowArgument
from aot.select.selector import fallback_key
from aot.space.enumeration import fallback
from tests.emulated import KeepingGpu, emulated_set, target_of
from tests.unit.twins import BF16

pytestmark = pytest.mark.slow
NORM = row_operation("bf16_rms_norm")
SPLIT = KernelKey(BF16, gemm_candidate("sm100_quack", 128, 128, split_k=2, split_k_mode="serial", schedule="static"))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    target = target_of("thor")
    keys = [fallback_key(BF16, target), SPLIT, RowKernelKey(NORM, fallback(NORM, target))]
    return emulated_set(keys, "thor", tmp_path_factory.mktemp("host"))


def products(kernels, target=None, folder=None):
    """Load the kernels; into a folder where the library is to ask anew what the device is."""
    gpu = KeepingGpu()
    codes = [DeviceCode.of(x) for x in (*kernels.products, *kernels.rows)]
    path = kernels.library if folder is None else Path(shutil.copy(kernels.library, folder))
    return gpu, EmulatedKernels(path, codes, gpu, target or kernels.target)


def bound_call(gpu, found, m, n, k):
    tensors = {}
    for argument, matrix in operands(Problem(BF16, m, n, k)).items():
        tensors[argument] = Tensor(gpu.alloc(2 * matrix.num_elements), matrix)
    return found.bind(GemmCall(Problem(BF16, m, n, k), tensors)), tensors


def test_a_launch_has_its_grid_and_each_parameter(kernels):
    gpu, found = products(kernels)
    assert found.names == tuple(x.kernel.name for x in (*kernels.products, *kernels.rows))
    bound, tensors = bound_call(gpu, found, 70, 130, 40)
    assert found.workspace_bytes(0, bound) == 0
    assert found.max_active_clusters(0, bound, 0, 0) is None
    found.launch(0, bound, 0, 0, gpu.stream)
    (asked,) = gpu.asked
    assert isinstance(asked, KernelLaunch)
    launch = asked.launch
    assert (launch.grid, launch.block, launch.cluster) == ((6, 1, 1), (256, 1, 1), (1, 1, 1))
    kernel = asked.code.kernels[launch.kernel]
    assert tuple(map(len, launch.parameters)) == kernel.parameter_sizes
    assert asked.code.name == kernels.products[0].kernel.name
    everything = b"".join(launch.parameters)
    for tensor in tensors.values():
        assert struct.pack("<Q", tensor.address) in everything


def test_what_is_cleared_comes_before_what_is_launched(kernels):
    gpu, found = products(kernels)
    bound, _ = bound_call(gpu, found, 128, 128, 512)
    num_bytes = found.workspace_bytes(1, bound)
    workspace = gpu.alloc(num_bytes)
    found.launch(1, bound, workspace, num_bytes, gpu.stream)
    clear, launch = gpu.asked
    assert isinstance(clear, Clear)
    assert workspace <= clear.address < clear.address + clear.num_bytes <= workspace + num_bytes
    assert launch.launch.smem_bytes > 48 * 1024
    assert launch.code.waits
    assert {x.name: x.writable for x in gpu.memory.allocations()} == {
        "a": False,
        "b": False,
        "d": True,
        "workspace": True,
    }


def test_more_shared_memory_than_the_device_has_is_refused(kernels, tmp_path):
    small = replace(kernels.target, smem_bytes_per_block=64 * 1024)
    gpu, found = products(kernels, small, tmp_path)
    bound, _ = bound_call(gpu, found, 128, 128, 512)
    workspace = gpu.alloc(found.workspace_bytes(1, bound))
    with pytest.raises(DeviceError, match="invalid argument: shared memory, cluster or attributes"):
        found.launch(1, bound, workspace, found.workspace_bytes(1, bound), gpu.stream)
    assert gpu.asked == []


def test_another_device_than_the_kernels_are_for_is_refused(kernels, tmp_path):
    gpu, found = products(kernels, replace(kernels.target, compute_capability=(9, 0)), tmp_path)
    bound, _ = bound_call(gpu, found, 64, 64, 64)
    with pytest.raises(DeviceError, match=r"compute capability|sm_110"):
        found.launch(0, bound, 0, 0, gpu.stream)


def test_rows_are_launched_likewise(kernels):
    gpu, found = products(kernels)
    tensors = {x: Tensor(gpu.alloc(3 * 128), Matrix(3, 64, 64, 1)) for x in (RowArgument.X, RowArgument.Y)}
    bound = found.bind(RowCall(RowProblem(NORM, 3, 64), tensors))
    found.launch(len(kernels.products), bound, 0, 0, gpu.stream)
    (asked,) = gpu.asked
    assert asked.launch.is_programmatic
    assert asked.launch.grid[0] * asked.launch.block[0] >= 3
    assert {x.name: x.writable for x in gpu.memory.allocations()} == {"x": False, "y": True}
