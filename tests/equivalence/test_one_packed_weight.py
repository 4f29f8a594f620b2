"""One packed weight is multiplied on a Thor by x of 16 bits and by narrow x, from the same bytes.

Of NVFP4 x is rounded to NVFP4, of MXFP4 to MXFP8.
"""

from dataclasses import dataclass

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
from aot.core.weight_format import MXFP4_ROWS, NVFP4_ROWS, PackedLayout, WeightFormat, WeightParts
from aot.core.weight_packing import pack
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.families import family_named
from tests.compiling import EVERY
from tests.emulated import emulated_set, target_of
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
M, N = 5, 136
"""More rows of the weight than an atom has, and no whole tiles of 16."""
ROUNDING, SUMMING = 2.0**-8, 2.0**-24
"""Of bf16, and of a sum of float32, of which there are at most as many as k."""


@dataclass(frozen=True)
class Formats:
    """What the weight and x are."""

    form: WeightFormat
    wide: Operation
    narrow: Operation
    of_x: str
    k: int

    def key(self, family, text=""):
        """Return a kernel of x of 16 bits."""
        found = family_named(family).candidates(self.wide, target_of("thor"))
        return KernelKey(self.wide, next(x for x in found if text in x.name))

    @property
    def keys(self):
        """Return three kernels of x of 16 bits, and one of narrow x."""
        return (
            self.key("weight_only", "columns8_stages2_tiles2_warps4"),
            self.key("weight_only_simt"),
            self.key("sm100_weight_only", "128x32"),
            KernelKey(self.narrow, named("sm100_block_scale_128x64_c1x1_static")),
        )

    def atoms(self, rows):
        """Return where factors of rows lie."""
        return AtomMatrix(rows, self.k // self.form.group, 0, 0)


CASES = (
    Formats(NVFP4_ROWS, Operation.BF16_NVFP4_ROWS_KK, Operation.NVFP4_BF16_KK, "nvfp4", 288),
    Formats(MXFP4_ROWS, Operation.BF16_MXFP4_ROWS_KK, Operation.MXFP8_MXFP4_BF16_KK, "mxfp8", 384),
)
"""k of the first ends within a run of 64; TMA loads MXFP4 beside MXFP8 by whole 128."""


class Device:
    """The emulated device with the four kernels, and a weight on it."""

    def __init__(self, case, folder, rng):
        self.case = case
        kernels = emulated_set(case.keys, "thor", folder)
        self.gpu = EmulatedGpu(kernels.target.l2_bytes)
        self.kernels = EmulatedKernels(
            kernels.library, [DeviceCode.of(x) for x in kernels.products], self.gpu, kernels.target
        )
        self.weight = quantize(rng.standard_normal((N, case.k)).astype(np.float32), case.form.elements)
        self.packed = pack(case.form, WeightParts(self.weight.codes, self.weight.factors))
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
        bound = self.kernels.bind(GemmCall(Problem(key.operation, M, N, self.case.k), held))
        self.kernels.launch(index, bound, 0, 0, self.gpu.stream)
        self.gpu.synchronize()
        bits = np.empty((M, N), np.uint16)
        self.gpu.download(self.d, bits)
        return decode(ElementType.BFLOAT16, bits)

    def beside_16_bits(self, key, x_bits):
        k = self.case.k
        held = {
            Argument.A: Tensor(self.put(x_bits), Matrix(M, k, k, 1)),
            Argument.B: Tensor(self.address, Matrix(*self.packed.shape, self.packed.shape[1], 1)),
        }
        if self.case.form.has_row_factors:
            own = self.put(np.array([self.weight.tensor_factor], np.float32))
            held[Argument.SCALE_B] = Tensor(own, Matrix(N, 1, 0, 1))
        return self.run(key, held)

    def beside_narrow(self, x):
        layout, leading, k = PackedLayout(self.case.form), 2 * self.packed.shape[1], self.case.k
        atoms = self.address + layout.first_atom_row(N) * self.packed.shape[1]
        held = {
            Argument.A: Tensor(self.put(x.packed), Matrix(M, k, k, 1)),
            Argument.B: Tensor(self.address, Matrix(N, k, leading, 1)),
            Argument.SCALE_A: Tensor(self.put(pack_factors(x.factors)), self.case.atoms(M)),
            Argument.SCALE_B: Tensor(atoms, self.case.atoms(N)),
        }
        if self.case.form.has_row_factors:
            both = np.array([x.tensor_factor * self.weight.tensor_factor], np.float32)
            held[Argument.SCALE_D] = Tensor(self.put(both), Matrix(1, 1, 1, 1))
        return self.run(self.case.keys[3], held)


def is_right(found, x, weight):
    exact, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    return bool((np.abs(found - exact) <= ROUNDING * np.abs(exact) + 2 * x.shape[1] * SUMMING * size).all())


@pytest.mark.walk
@pytest.mark.parametrize("case", CASES, ids=lambda x: x.form.name)
def test_all_products_read_the_same_bytes(case, tmp_path):
    rng = np.random.default_rng(3)
    device = Device(case, tmp_path, rng)
    bits = encode(ElementType.BFLOAT16, rng.standard_normal((M, case.k)).astype(np.float32))
    wide = decode(ElementType.BFLOAT16, bits)
    weight = device.weight.values
    for key in case.keys[:3]:
        assert is_right(device.beside_16_bits(key, bits), wide, weight), key.name
    narrow = quantize(wide.astype(np.float32), case.of_x)
    found = device.beside_narrow(narrow)
    assert is_right(found, narrow.values, weight)
    assert not is_right(found, wide, weight)  # since x is rounded
    first, last = PackedLayout(case.form).first_atom_row(N), np.array([case.k // case.form.group - 1])
    of_a_factor = int(case.atoms(N).positions(np.array([N - 1]), last)[0, 0])
    flips = (0, 0x40), (first * device.packed.shape[1] + of_a_factor, 0x08)
    for place, bit in flips if EVERY else flips[1:]:
        changed = device.packed.reshape(-1).copy()
        changed[place] ^= bit
        device.gpu.upload(device.address, changed)
        assert not is_right(device.beside_narrow(narrow), narrow.values, weight)
        assert not is_right(device.beside_16_bits(case.keys[0], bits), wide, weight)
        assert not is_right(device.beside_16_bits(case.keys[2], bits), wide, weight)
