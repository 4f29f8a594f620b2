"""Row kernels, compiled without a GPU: what they take, and what they would launch."""

import ctypes

import pytest

from aot.compile.object_file import inspect
from aot.core.element import ElementType
from aot.core.target import load_target
from aot.families import rows_families_of, rows_family_of
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.function import GELU_TANH_MUL, GPT_OSS_MUL, OF_CACHE, OWN_FUNCTIONS
from aot.kinds.rows.signature import RowArgument
from tests import native
from tests.compiling import EVERY, compile_kernels
from tests.objects import parameter_sizes

H200 = load_target("h200")
KERNELS = {
    "bf16_rms_norm": "row_registers_256x1_v8x2",
    "fp16_rms_norm": "row_registers_512x1_v8x4",
    "bf16_layer_norm": "row_looped_512x1_v8x2",
    "bf16_e4m3_layer_norm": "row_registers_128x2_v8x4",
    "bf16_silu_mul": "row_registers_128x1_v8x2",
    "bf16_e4m3_silu_mul": "row_scalar_256x1_v1x4",
    "fp16_rotary": "row_rotary_8x16_v8x1",
    "bf16_rotary": "row_scalar_32x8_v1x1",
    "bf16_int8_quantize": "row_registers_1024x1_v8x2",
    "bf16_e4m3_block_quantize": "row_registers_16x8_v8x1",
    "bf16_nvfp4_quantize": "row_registers_128x1_v8x2",
    "bf16_mxfp8_quantize": "row_scalar_256x1_v1x4",
    "bf16_nvfp4_rms_norm": "row_looped_512x1_v8x2",
    "bf16_nvfp4_silu_mul": "row_registers_256x1_v8x4",
    "bf16_gpt_oss_mul": "row_registers_128x1_v8x2",
}
OF_THOR = {
    *("bf16_rms_norm", "bf16_layer_norm", "bf16_e4m3_layer_norm", "fp16_rotary", "bf16_rotary"),
    *("bf16_nvfp4_quantize", "bf16_mxfp8_quantize"),
}
"""One of each family, and of each way to write narrow codes: a Thor's others differ from an H200's as these do."""
X, Y, STREAM = 0x7F0000000000, 0x7F1000000000, 0x1234560
HEADS = 4
SIZES = ((1, 4096), (70000, 128), (0, 64), (8191, 1024))

MATRIX, VECTOR, BOTH = 8 + 2 * 4 + 8, 8 + 4 + 4, 8 + 2 * 4 + 2 * 8
"""Bytes of a matrix of one stride, of a vector, and of a matrix of both."""
CUBE, CUBE_OF_ALL, CACHE = 8 + 3 * 4 + 4 + 2 * 8, 8 + 3 * 4 + 4 + 3 * 8, 8 + 4 * 4 + 3 * 8
PARAMETERS = {
    "bf16_rms_norm": [MATRIX, MATRIX, VECTOR, MATRIX, MATRIX, 4, 4, 4],
    "bf16_e4m3_layer_norm": [MATRIX, MATRIX, VECTOR, VECTOR, MATRIX, MATRIX, BOTH, 4, 4],
    "bf16_silu_mul": [MATRIX, MATRIX, 4],
    "bf16_e4m3_silu_mul": [BOTH, BOTH, BOTH, 4],
    "fp16_rotary": [CUBE, MATRIX, MATRIX, *[CUBE] * 3, CACHE, CACHE, VECTOR, 4],
    "bf16_rotary": [CUBE_OF_ALL, BOTH, BOTH, *[CUBE_OF_ALL] * 3, CACHE, CACHE, VECTOR, 4],
    "bf16_e4m3_block_quantize": [MATRIX, MATRIX, BOTH, 4],
    "bf16_nvfp4_quantize": [MATRIX, MATRIX, BOTH, VECTOR, VECTOR, VECTOR, 4],
    "bf16_mxfp8_quantize": [BOTH, BOTH, BOTH, VECTOR, VECTOR, 4],
    "bf16_nvfp4_rms_norm": [MATRIX, MATRIX, VECTOR, MATRIX, MATRIX, BOTH, VECTOR, 4, 4, 4],
}


class Dim3(ctypes.Structure):
    _fields_ = [(x, ctypes.c_uint32) for x in "xyz"]

    def __iter__(self):
        return iter((self.x, self.y, self.z))


class Launch(ctypes.Structure):
    _fields_ = [
        ("grid", Dim3),
        ("block", Dim3),
        ("smem_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("is_programmatic", ctypes.c_int32),
        ("first", ctypes.c_ubyte * 32),
    ]


def key_of(tag):
    operation = row_operation(tag)
    candidates = (x for family in rows_families_of(operation, H200) for x in family.candidates(operation, H200))
    return RowKernelKey(operation, next(x for x in candidates if x.name == KERNELS[tag]))


@pytest.fixture(scope="module", params=["h200", "thor"])
def objects(request):
    target = load_target(request.param)
    tags = [tag for tag in KERNELS if EVERY or target == H200 or tag in OF_THOR]
    artifacts = compile_kernels([key_of(tag) for tag in tags], target)
    return target, {tag: found.path for tag, found in zip(tags, artifacts, strict=True)}


@pytest.mark.slow
def test_kernels_compile_without_spilling_and_take_what_their_operation_has(objects):
    target, paths = objects
    for tag, path in paths.items():
        key = key_of(tag)
        report = inspect(path, key.name, target, key.candidate.knobs.num_threads)
        assert (tag, report.spill_bytes) == (tag, 0)
    assert {x: parameter_sizes(paths[x]) for x in PARAMETERS if x in paths} == {
        x: PARAMETERS[x] for x in PARAMETERS if x in paths
    }


def tensor(address, shape, strides):
    fields = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * len(shape))]
    fields += [("strides", ctypes.c_int64 * len(strides))] if strides else []
    made = type("Tensor", (ctypes.Structure,), {"_fields_": fields})
    return made(address, tuple(shape), *([tuple(strides)] if strides else []))


def no_cache(argument, rows, cols, last):
    """Make what a call without keys has in their place."""
    if argument in (RowArgument.KEYS, RowArgument.VALUES):
        return tensor(0, (rows, 0, cols), (0, cols, *last))
    is_position = argument is RowArgument.CACHE_POSITION
    return tensor(0, (0,), ()) if is_position else tensor(0, (0, 0, 0, cols), (0, cols, cols))


def arguments_of(key, rows, cols):
    """Make the arguments of an entry, of contiguous tensors."""
    has_last = rows_family_of(key.candidate).limits(key.candidate, key.operation).has_last_stride
    last = (1,) if has_last else ()
    is_rotary = key.operation.is_rotary
    columns = {RowArgument.X: key.operation.num_columns_of_x(cols), RowArgument.COS: 32, RowArgument.SIN: 32}
    for argument in key.operation.signature:
        width, address = columns.get(argument, cols), {RowArgument.X: X, RowArgument.Y: Y}.get(argument, 0)
        if argument in OF_CACHE:
            yield no_cache(argument, rows, width, last)
            continue
        match argument:
            case RowArgument.STREAM:
                yield ctypes.c_void_p(STREAM)
            case RowArgument.FLAGS:
                yield ctypes.c_int32(0)
            case RowArgument.EPS | RowArgument.WEIGHT_OFFSET:
                yield ctypes.c_float(0.0)
            case RowArgument.WEIGHT | RowArgument.BIAS:
                yield tensor(0, (width,), ())
            case RowArgument.TENSOR_SCALE | RowArgument.OFFSETS | RowArgument.INDEX:
                yield tensor(0, (1,), ())
            case RowArgument.SCALE:
                yield tensor(0, (rows, 1), (1, 1))
            case RowArgument.X | RowArgument.Y if is_rotary:
                yield tensor(address, (rows, HEADS, width), (HEADS * width, width, *last))
            case _:
                yield tensor(address, (rows, width), (width, *last))


def call(library, symbol, values):
    """Call an entry of a kernel's object: the addresses of its arguments, and of what it returns."""
    result = ctypes.c_int32(-1)
    held = [*values, result]
    library[symbol]((ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), ctypes.c_int32(len(held)))
    assert result.value == 0


def grid_of(key, rows, cols):
    """Return the CTAs along x."""
    operation, knobs = key.operation, key.candidate.knobs
    rows *= HEADS if operation.is_rotary else 1
    is_cut = not operation.reduces_rows and not operation.is_rotary
    return max(-(-rows // knobs.rows_per_cta), 1) * (-(-cols // knobs.columns) if is_cut else 1)


@pytest.mark.slow
def test_launches_are_programmatic_and_as_large_as_the_problem(objects, tmp_path):
    target, paths = objects
    if target.machine != "x86_64":
        pytest.skip("the host's code of this target does not run here")
    source = native.ROOT / "tests" / "unit" / "families" / "rows" / "launches.cc"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared"]
    library = ctypes.CDLL(str(native.link([source, *paths.values()], tmp_path / "rows.so", native.GCC, flags, [])))
    launch = Launch.in_dll(library, "last_launch")
    for tag, path in paths.items():
        key = key_of(tag)
        report = inspect(path, key.name, target, key.candidate.knobs.num_threads)
        module = ctypes.c_void_p()
        pointer = ctypes.pointer(module)
        call(library, report.init_symbol, [ctypes.pointer(pointer)])
        call(library, report.load_symbol, [ctypes.pointer(pointer), ctypes.c_int32(0)])
        for rows, cols in SIZES:
            call(library, report.entry_symbol, arguments_of(key, rows, cols))
            assert (tag, *launch.grid) == (tag, grid_of(key, rows, cols), 1, 1)
            assert tuple(launch.block) == (key.candidate.knobs.num_threads, 1, 1)
            assert (launch.is_programmatic, launch.stream) == (1, STREAM)
            assert (
                launch.smem_bytes
                <= rows_family_of(key.candidate).resources(key.candidate, key.operation, target).smem_bytes
            )
            assert int.from_bytes(launch.first[:8], "little") == X


def test_the_kernels_are_of_every_function_and_family():
    assert {row_operation(tag).function for tag in KERNELS} == {*OWN_FUNCTIONS, GPT_OSS_MUL} - {GELU_TANH_MUL}
    assert {key_of(tag).candidate.family for tag in KERNELS} == {
        "row_registers",
        "row_looped",
        "row_rotary",
        "row_scalar",
    }
    assert {row_operation(tag).y for tag in KERNELS} >= {ElementType.E4M3, ElementType.INT8}
