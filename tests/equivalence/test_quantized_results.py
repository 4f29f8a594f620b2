"""Products whose D is NVFP4, MXFP8 or MXFP4 with factors, executed: held against the rules, and read by a second one.

The operands of the chains are such that every sum is a number of float32, whatever the order of its additions: D is
then the rules' own rounding of it, code by code, and so are its factors. `make test` executes two kernels, and `make
walk` all.
"""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.block_quantization import Quantized, quantize
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.factor_atoms import pack_factors
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, encode, unpack
from aot.core.operands import AtomMatrix, GemmCall, Matrix, Tensor
from aot.core.operation import Operation as Op
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.kinds.gemm.edge_shapes import Content, shape_of
from aot.kinds.gemm.tuned import TunedKernel
from aot.measure.verify import Verifier
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
M, N, K, LAST_N = 37, 96, 96, 40
FORM, OWN = "nvfp4", np.float32(2.0**-5)
NAME = "sm100_block_scale_128x64_c1x1_static"
SECOND = KernelKey(Op.NVFP4_BF16_KK, named(NAME))
SECONDS = {"nvfp4": SECOND} | {x: KernelKey(Op(f"{x}_bf16_kk"), named(NAME)) for x in ("mxfp8", "mxfp4")}
"""What reads a D in a format."""
FALLBACK = "simt_64x64_c1x1_direct"
KERNELS = [
    (Op.NVFP4_NVFP4_KK, NAME, ((130, 96, 96),)),
    (Op.MXFP8_MXFP8_KK_SWIGLU, NAME, ((37, 48, 96),)),  # a row ends inside of a block, and an atom behind a tile
]
MORE = [
    (Op.NVFP4_NVFP4_KK_SWIGLU, FALLBACK, ((37, 90, 35), (70, 66, 64))),
    (Op.NVFP4_NVFP4_KK, FALLBACK, ((65, 2, 33),)),
    (Op.NVFP4_NVFP4_KK_BIAS, "sm100_block_scale_128x128_c1x1_clc", ((130, 224, 288),)),
    (Op.NVFP4_NVFP4_KK_SWIGLU, "sm100_block_scale_128x128_c1x1_static", ((37, 96, 96), (130, 224, 288))),
    (Op.NVFP4_NVFP4_KK_GEGLU, "sm100_block_scale_256x128_c2x1_clc_2cta", ((300, 96, 96),)),
    (Op.NVFP4_NVFP4_KK_GELU, "sm100_block_scale_256x192_c2x1_clc_2cta", ((37, 96, 96), (300, 416, 544))),
    (Op.NVFP4_NVFP4_KK_SILU, "sm100_block_scale_128x64_c1x1_static_serial2", ((130, 96, 1056),)),
    (Op.NVFP4_NVFP4_KK_GEGLU, NAME, ((130, 96, 96), (300, 224, 288))),
    (Op.MXFP8_MXFP8_KK, NAME, ((130, 96, 96), (37, 32, 160), (300, 224, 288))),
    (Op.MXFP8_MXFP8_KK_BIAS, "sm100_block_scale_128x128_c1x1_clc", ((130, 208, 272),)),
    (Op.MXFP8_MXFP8_KK_SWIGLU, "sm100_block_scale_256x128_c2x1_clc_2cta", ((300, 96, 96),)),
    (Op.MXFP8_MXFP8_KK_GELU, FALLBACK, ((37, 91, 35),)),
    (Op.MXFP4_MXFP4_KK, NAME, ((130, 96, 96), (300, 224, 288))),
    (Op.MXFP4_MXFP4_KK_GEGLU, NAME, ((37, 32, 160), (300, 224, 288))),
    (Op.MXFP4_MXFP4_KK_RELU, "sm100_block_scale_256x64_c2x1_static_2cta", ((300, 416, 544),)),
    (Op.MXFP4_MXFP4_KK_SWIGLU, FALLBACK, ((37, 90, 35), (10, 34, 64))),
    (Op.MXFP4_MXFP4_KK, FALLBACK, ((65, 2, 33),)),
]
TRIED = KERNELS + MORE if EVERY else KERNELS
CHAINED = [x for x in TRIED if x[0] in (Op.NVFP4_NVFP4_KK, Op.MXFP8_MXFP8_KK, Op.MXFP4_MXFP4_KK)]


def started(key, folder, *others):
    """Return the emulated device with kernels, and the first one's record."""
    kernels = emulated_set([key, *others], "thor", folder)
    gpu = EmulatedGpu(kernels.target.l2_bytes)
    codes = [DeviceCode.of(x) for x in kernels.products]
    return gpu, EmulatedKernels(kernels.library, codes, gpu, kernels.target), kernels.products[0].kernel


@pytest.mark.parametrize(("operation", "name", "extents"), TRIED, ids=lambda x: getattr(x, "tag", None))
def test_ragged_results_are_right_and_nothing_else_is_written(operation, name, extents, tmp_path):
    key = KernelKey(operation, named(name))
    gpu, kernels, record = started(key, tmp_path)
    tuned = TunedKernel.of(record, is_fallback=name == FALLBACK)
    verifier = Verifier(gpu, kernels, np.random.default_rng(3))
    for each in extents:
        assert verifier.run_each(shape_of(tuned, each), 0, (False,)).share_of_bound <= 1
    special = replace(shape_of(tuned, (40, 96, 64)), content=Content.SPECIAL)  # NaNs among factors and in a bias
    verifier.run_each(special, 0, (False,))


class Device:
    """The emulated device, and what is held on it."""

    def __init__(self, key, folder, second=SECOND):
        self.gpu, self.kernels, _ = started(key, folder, second)

    def put(self, bits):
        address = self.gpu.alloc(bits.nbytes)
        self.gpu.upload(address, np.ascontiguousarray(bits))
        return address

    def get(self, address, count, dtype=np.uint8):
        bits = np.empty(count, dtype)
        self.gpu.download(address, bits)
        return bits

    def operand(self, held):
        """Put a quantised matrix on the device: elements, factors."""
        rows, k = held.codes.shape
        atoms = AtomMatrix(*held.factors.shape, 0, 0)
        return Tensor(self.put(held.packed), Matrix(rows, k, k, 1)), Tensor(self.put(pack_factors(held.factors)), atoms)

    def number(self, value):
        return Tensor(self.put(np.array([value], np.float32)), Matrix(1, 1, 1, 1))

    def run(self, index, call):
        bound = self.kernels.bind(call)
        num_bytes = self.kernels.workspace_bytes(index, bound)
        self.kernels.launch(index, bound, self.gpu.alloc(num_bytes) if num_bytes else 0, num_bytes, self.gpu.stream)
        self.gpu.synchronize()


def exact_operand(rng, rows, k, form=FORM):
    """Make a quantised matrix whose products with another have sums that float32 holds: few bits, near each other."""
    element, scale = BLOCK_FORMATS[form]
    codes = encode(element, rng.choice((-2, -1, -0.5, 0, 0.5, 1, 1.5, 3), (rows, k)).astype(np.float32))
    powers = np.exp2(rng.integers(-2, 3, (rows, k // scale.block_k)))
    own = np.float32(2.0 ** int(rng.integers(-2, 3))) if scale.has_tensor_factor else None
    return Quantized(codes, encode(scale.element, powers.astype(np.float32)), own, BLOCK_FORMATS[form])


def product_of(device, index, key, x, weight, beside):
    """Run a product of two operands on the device."""
    operands = dict(zip((Argument.A, Argument.SCALE_A), x, strict=True))
    operands |= dict(zip((Argument.B, Argument.SCALE_B), weight, strict=True))
    rows, k = operands[Argument.A].matrix.num_rows, operands[Argument.A].matrix.num_columns
    problem = Problem(key.operation, rows, operands[Argument.B].matrix.num_rows, k)
    device.run(index, GemmCall(problem, operands | beside))


def wrong_sums(bits, x, weight):
    exact, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    allowed = 2.0**-8 * np.abs(exact) + 2.0**-15 * size
    return int((np.abs(decode(ElementType.BFLOAT16, bits) - exact) > allowed).sum())


@pytest.mark.parametrize(("operation", "name", "extents"), CHAINED, ids=lambda x: getattr(x, "tag", None))
def test_a_second_product_reads_what_rounding_would_give(operation, name, extents, tmp_path):
    del extents
    rng, key, form = np.random.default_rng(11), KernelKey(operation, named(name)), operation.a.tag
    second, (element, scale) = SECONDS[form], BLOCK_FORMATS[form]
    own = OWN if scale.has_tensor_factor else None
    device = Device(key, tmp_path, second)
    x, weight, last = (exact_operand(rng, *y, form) for y in ((M, K), (N, K), (LAST_N, N)))
    first = x.values @ weight.values.T
    assert np.array_equal(first.astype(np.float32), first)
    wanted = quantize(first.astype(np.float32), form, own)
    assert len(np.unique(wanted.factors)) > (20 if own else 3)  # which differ from block to block

    d = Tensor(device.put(np.full((M, element.size_of(N)), 0xFF, np.uint8)), Matrix(M, N, N, 1))
    atoms = AtomMatrix(M, N // scale.block_k, 0, 0)
    factors = Tensor(device.put(np.full(atoms.num_elements, 0xFF, np.uint8)), atoms)
    beside, more = {Argument.D: d, Argument.FACTORS_D: factors}, {}
    if own is not None:
        beside |= {Argument.OWN_D: device.number(own)}
        beside |= {Argument.SCALE_D: device.number(x.tensor_factor * weight.tensor_factor)}
        more = {Argument.SCALE_D: device.number(own * last.tensor_factor)}
    product_of(device, 0, key, device.operand(x), device.operand(weight), beside)
    written = device.get(d.address, M * element.size_of(N)).reshape(M, -1)
    assert np.array_equal(unpack(written) if element.num_sharing > 1 else written, wanted.codes)
    held = device.get(factors.address, atoms.num_elements)
    assert np.array_equal(held[atoms.all_positions[0]], wanted.factors)
    assert not held[atoms.filled].any()
    assert (held == 0xFF).sum() == held.size - M * held.size // 128  # of the rows behind the last one

    out = Tensor(device.put(np.full((M, LAST_N), 0xFFFF, np.uint16)), Matrix(M, LAST_N, LAST_N, 1))
    product_of(device, 1, second, (d, factors), device.operand(last), {Argument.D: out} | more)
    found = device.get(out.address, M * LAST_N, np.uint16).reshape(M, LAST_N)
    assert wrong_sums(found, wanted.values, last.values) == 0
    assert wrong_sums(found, first, last.values) > 0  # what is rounded shows
