"""What kernels of rows quantise for a Thor, its block-scaled product multiplies: both executed, one behind the other.

The product reads the bytes that the kernel in front wrote, in a buffer whose rows behind the last hold NaN. `make test`
runs two of the chains, `make walk` all.
"""

import numpy as np
import pytest

from aot.core.block_quantization import Quantized, own_factor, quantize
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.factor_atoms import pack_factors, unpack_factors
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, encode, unpack
from aot.core.operands import AtomMatrix, GemmCall, Matrix, Tensor
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.families import rows_families_of
from aot.kinds.rows.call import RowCall
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.function import QUANTIZE
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.signature import RowArgument
from tests.compiling import EVERY
from tests.emulated import emulated_set, target_of
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
M, N = 37, 24
LEAST_K = 288
ROUNDING, SUMMING = 2.0**-8, 384 * 2.0**-24
"""Of bf16, and of so many sums of float32 at most."""
CHAINS = {
    "nvfp4": (row_operation("bf16_nvfp4_quantize"), "nvfp4_bf16_kk"),
    "mxfp8": (row_operation("bf16_mxfp8_quantize"), "mxfp8_bf16_kk"),
    "mxfp4": (row_operation("bf16_mxfp4_quantize"), "mxfp4_bf16_kk"),
    "nvfp4 of a norm": (row_operation("bf16_nvfp4_rms_norm"), "nvfp4_bf16_kk"),
    "mxfp8 of a gate": (row_operation("bf16_mxfp8_silu_mul"), "mxfp8_bf16_kk"),
    "mxfp4 of a gate": (row_operation("bf16_mxfp4_silu_mul"), "mxfp4_bf16_kk"),
    "mxfp8 by mxfp4": (row_operation("bf16_mxfp8_quantize"), "mxfp8mxfp4_bf16_kk"),
}
"""What quantises x, and the product that reads it."""
PRODUCT = "sm100_block_scale_128x64_c1x1_static"


def keys_of(name):
    """Return the kernel that quantises, and one of the product."""
    quantises, tag = CHAINS[name]
    family = next(x for x in rows_families_of(quantises, target_of("thor")) if x.name == "row_registers")
    candidates = family.candidates(quantises, target_of("thor"))
    candidate = next(x for x in candidates if family.limits(x, quantises).takes(LEAST_K))
    product = KernelKey(Operation(tag), named(PRODUCT))
    return RowKernelKey(quantises, candidate), product


class Device:
    """The emulated device, with its kernels and with what is held on it."""

    def __init__(self, name, folder):
        self.quantises, product = keys_of(name)
        self.operation: Operation = product.operation
        self.k = -(-LEAST_K // self.operation.k_step) * self.operation.k_step
        kernels = emulated_set([self.quantises, product], "thor", folder)
        self.gpu = EmulatedGpu(kernels.target.l2_bytes)
        codes = [DeviceCode.of(x) for x in (*kernels.products, *kernels.rows)]
        self.kernels = EmulatedKernels(kernels.library, codes, self.gpu, kernels.target)

    def put(self, bits):
        address = self.gpu.alloc(bits.nbytes)
        self.gpu.upload(address, np.ascontiguousarray(bits))
        return address

    def get(self, address, count, dtype=np.uint8):
        bits = np.empty(count, dtype)
        self.gpu.download(address, bits)
        return bits

    def run(self, name, call):
        index = next(i for i, x in enumerate(self.kernels.names) if x.startswith(name))
        bound = self.kernels.bind(call)
        num_bytes = self.kernels.workspace_bytes(index, bound)
        workspace = self.gpu.alloc(num_bytes) if num_bytes else 0
        self.kernels.launch(index, bound, workspace, num_bytes, self.gpu.stream)
        self.gpu.synchronize()


def wrong_sums(bits, x, weight):
    """Count the elements of D (M, N) that are not those of the values of two quantised matrices."""
    exact, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    allowed = ROUNDING * np.abs(exact) + 2 * SUMMING * size
    return int((np.abs(decode(ElementType.BFLOAT16, bits) - exact) > allowed).sum())


def quantise(device, rng):
    """Run the kernel in front; return where elements and factors lie, and what they are."""
    rows, k = device.quantises.operation, device.k
    columns = rows.num_columns_of_x(k)
    spread = np.exp2(rng.integers(-3, 4, (M, columns // 16))).repeat(16, 1)
    x_bits = encode(ElementType.BFLOAT16, (rng.standard_normal((M, columns)) * spread).astype(np.float32))
    x = decode(ElementType.BFLOAT16, x_bits).astype(np.float32)
    own = own_factor(np.abs(x).max()) if rows.has_tensor_scale else None
    atoms = AtomMatrix(*rows.shape_of_scales(M, k), 0, 0)
    tensors = {
        RowArgument.X: Tensor(device.put(x_bits), Matrix(M, columns, columns, 1)),
        RowArgument.Y: Tensor(device.put(np.full(rows.y.size_of(M * k), 0xFF, np.uint8)), Matrix(M, k, k, 1)),
        RowArgument.SCALE: Tensor(device.put(np.full(atoms.num_elements, 0xFF, np.uint8)), atoms),
    }
    if own is not None:
        tensors[RowArgument.TENSOR_SCALE] = Tensor(device.put(np.array([own])), Matrix(1, 1, 1, 1))
    device.run(rows.tag, RowCall(RowProblem(rows, M, k), tensors))
    y, scale = tensors[RowArgument.Y], tensors[RowArgument.SCALE]
    codes = device.get(y.address, rows.y.size_of(M * k)).reshape(M, -1)
    held = device.get(scale.address, atoms.num_elements)
    assert (held == 0xFF).any()  # in the rows behind the last one
    factors = unpack_factors(held, M, atoms.num_columns)
    found = Quantized(unpack(codes) if rows.multiple > 1 else codes, factors, own, BLOCK_FORMATS[rows.form])
    if rows.function == QUANTIZE:
        wanted = quantize(x, rows.form, own)
        assert np.array_equal(found.codes, wanted.codes)
        assert np.array_equal(found.factors, wanted.factors)
    return y, scale, found


@pytest.mark.parametrize("name", CHAINS if EVERY else ("nvfp4", "mxfp8 of a gate"))
def test_a_product_reads_what_a_kernel_quantised(name, tmp_path):
    rng, device = np.random.default_rng(7), Device(name, tmp_path)
    k, form = device.k, device.operation.b.tag
    y, scale, x = quantise(device, rng)
    weight = quantize(rng.standard_normal((N, k)).astype(np.float32), form)
    d = Tensor(device.put(np.full((M, N), 0xFFFF, np.uint16)), Matrix(M, N, N, 1))
    given = {
        Argument.A: y,
        Argument.B: Tensor(device.put(weight.packed), Matrix(N, k, k, 1)),
        Argument.D: d,
        Argument.SCALE_A: scale,
        Argument.SCALE_B: Tensor(device.put(pack_factors(weight.factors)), AtomMatrix(*weight.factors.shape, 0, 0)),
    }
    if x.tensor_factor is not None:
        both = np.array([x.tensor_factor * weight.tensor_factor], np.float32)
        given[Argument.SCALE_D] = Tensor(device.put(both), Matrix(1, 1, 1, 1))
    call = GemmCall(Problem(device.operation, M, N, k), given)
    device.run(device.operation.tag, call)
    assert wrong_sums(device.get(d.address, M * N, np.uint16).reshape(M, N), x.values, weight.values) == 0

    changed = device.get(scale.address, scale.matrix.num_elements)
    changed[scale.matrix.positions(np.arange(M), np.arange(1))[5, 0]] ^= 8
    device.gpu.upload(scale.address, changed)
    device.run(device.operation.tag, call)
    assert wrong_sums(device.get(d.address, M * N, np.uint16).reshape(M, N), x.values, weight.values) > 0
