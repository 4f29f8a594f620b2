"""One packed weight of NVFP4 is multiplied on a Thor by x of 16 bits and by x in NVFP4, from the same bytes."""

import numpy as np
import pytest

from aot.core.block_quantization import quantize
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.factor_atoms import pack_factors
from aot.core.numerics import decode, encode
from aot.core.operands import AtomMatrix, GemmCall, Matrix, Tensor
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.weight_format import NVFP4_ROWS, PackedLayout, WeightParts
from aot.core.weight_packing import pack
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.families import family_named
from tests.compiling import EVERY
from tests.emulated import emulated_set, target_of
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
M, N, K = 5, 136, 288
"""More rows of the weight than an atom has, and no whole tiles of 16; k ends within a run of 64."""
ROUNDING, SUMMING = 2.0**-8, K * 2.0**-24
"""Of bf16, and of K sums of float32 at most."""
WIDE, NARROW = Operation.BF16_NVFP4_ROWS_KK, Operation.NVFP4_BF16_KK


def key_of(family, text=""):
    found = family_named(family).candidates(WIDE, target_of("thor"))
    return KernelKey(WIDE, next(x for x in found if text in x.name))


KEYS = (
    key_of("weight_only", "columns8_stages2_tiles2_warps4"),
    key_of("weight_only_simt"),
    key_of("sm100_weight_only", "128x32"),
    KernelKey(NARROW, named("sm100_block_scale_128x64_c1x1_static")),
)


class Device:
    """The emulated device with the four kernels, and a weight on it."""

    def __init__(self, folder, rng):
        kernels = emulated_set(KEYS, "thor", folder)
        self.gpu = EmulatedGpu(kernels.target.l2_bytes)
        self.kernels = EmulatedKernels(
            kernels.library, [DeviceCode.of(x) for x in kernels.products], self.gpu, kernels.target
        )
        self.weight = quantize(rng.standard_normal((N, K)).astype(np.float32), "nvfp4")
        self.packed = pack(NVFP4_ROWS, WeightParts(self.weight.codes, self.weight.factors))
        self.address = self.put(self.packed)
        self.d = self.put(np.full((M, N), 0xFFFF, np.uint16))

    def put(self, bits):
        address = self.gpu.alloc(bits.nbytes)
        self.gpu.upload(address, np.ascontiguousarray(bits))
        return address

    def run(self, key, tensors):
        """Run a kernel; return D's values."""
        index = next(i for i, x in enumerate(self.kernels.names) if x.startswith(key.name))
        held = {Argument.D: Tensor(self.d, Matrix(M, N, N, 1)), **tensors}
        bound = self.kernels.bind(GemmCall(Problem(key.operation, M, N, K), held))
        self.kernels.launch(index, bound, 0, 0, self.gpu.stream)
        self.gpu.synchronize()
        bits = np.empty((M, N), np.uint16)
        self.gpu.download(self.d, bits)
        return decode(ElementType.BFLOAT16, bits)

    def beside_16_bits(self, key, x_bits):
        own = self.put(np.array([self.weight.tensor_factor], np.float32))
        return self.run(
            key,
            {
                Argument.A: Tensor(self.put(x_bits), Matrix(M, K, K, 1)),
                Argument.B: Tensor(self.address, Matrix(*self.packed.shape, self.packed.shape[1], 1)),
                Argument.SCALE_B: Tensor(own, Matrix(N, 1, 0, 1)),
            },
        )

    def beside_nvfp4(self, x):
        layout, leading = PackedLayout(NVFP4_ROWS), 2 * self.packed.shape[1]
        atoms = self.address + layout.first_atom_row(N) * self.packed.shape[1]
        both = np.array([x.tensor_factor * self.weight.tensor_factor], np.float32)
        return self.run(
            KEYS[3],
            {
                Argument.A: Tensor(self.put(x.packed), Matrix(M, K, K, 1)),
                Argument.B: Tensor(self.address, Matrix(N, K, leading, 1)),
                Argument.SCALE_A: Tensor(self.put(pack_factors(x.factors)), AtomMatrix(*x.factors.shape, 0, 0)),
                Argument.SCALE_B: Tensor(atoms, AtomMatrix(*self.weight.factors.shape, 0, 0)),
                Argument.SCALE_D: Tensor(self.put(both), Matrix(1, 1, 1, 1)),
            },
        )


def is_right(found, x, weight):
    exact, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    return bool((np.abs(found - exact) <= ROUNDING * np.abs(exact) + 2 * SUMMING * size).all())


@pytest.mark.walk
def test_all_products_read_the_same_bytes(tmp_path):
    rng = np.random.default_rng(3)
    device = Device(tmp_path, rng)
    bits = encode(ElementType.BFLOAT16, rng.standard_normal((M, K)).astype(np.float32))
    wide = decode(ElementType.BFLOAT16, bits)
    weight = device.weight.values
    for key in KEYS[:3]:
        assert is_right(device.beside_16_bits(key, bits), wide, weight), key.name
    narrow = quantize(wide.astype(np.float32), "nvfp4")
    found = device.beside_nvfp4(narrow)
    assert is_right(found, narrow.values, weight)
    assert not is_right(found, wide, weight)  # since x is rounded
    first, atoms = PackedLayout(NVFP4_ROWS).first_atom_row(N), AtomMatrix(N, K // 16, 0, 0)
    of_a_factor = int(atoms.positions(np.array([N - 1]), np.array([K // 16 - 1]))[0, 0])
    flips = (0, 0x40), (first * device.packed.shape[1] + of_a_factor, 0x08)
    for place, bit in flips if EVERY else flips[1:]:
        changed = device.packed.reshape(-1).copy()
        changed[place] ^= bit
        device.gpu.upload(device.address, changed)
        assert not is_right(device.beside_nvfp4(narrow), narrow.values, weight)
        assert not is_right(device.beside_16_bits(KEYS[0], bits), wide, weight)
        assert not is_right(device.beside_16_bits(KEYS[2], bits), wide, weight)
