"""Builds the runtime with the host's compiler over the recorder, and speaks its C API by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import re
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from aot.core.candidate import gemm_candidate
from aot.core.dispatch import MAX_STEP_M, Column, DispatchTable, Grid, Ladder, Row, Section, rounded_up
from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.tile_order import NUM_ORDERS
from aot.measure.call_structs import ProblemStruct, TensorStruct
from aot.measure.call_structs import SelectionStruct as Selection
from aot.package.build import read_templates, write
from aot.package.render import library_name, render, render_library
from aot.package.toolchain import dlpack_dir
from tests import native
from tests.golden.manifest import FALLBACK, golden_manifest, kernel, with_table
from tests.runtime.structs import Clear, FakeLaunch, Order, RealLaunch

RECORDER = Path(__file__).with_name("recorder.cc")
CHOOSER = Path(__file__).with_name("chooser.cc")
ROW_RECORDER = Path(__file__).with_name("row_recorder.cc")
_OF_BINDING = re.compile(r"if\(AOT_BUILD_BINDING\)(.*?)endif", re.DOTALL)
_CMAKE_LISTS = read_templates()["CMakeLists.txt.j2"].decode()
BINDING_SOURCES = set(re.findall(r"src/(\w+)\.cc", _OF_BINDING.search(_CMAKE_LISTS)[1]))
"""What CMakeLists.txt compiles for Python alone."""
REPLACED_SOURCES = {"cuda_entry", "graph_edge", "spread"}
"""What a library over something other than CUDA is not compiled of."""
INIT, LOAD, LAUNCH, GET_DEVICE, SET_DEVICE, CAPABILITY, CLEAR, CAPTURE_MODE, SYNCHRONIZE, IS_CAPTURING, ORDER, FACTS = (
    range(12)
)
QUACK, OVERLAP = "sm90_quack", "sm90_prefetch_b"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-exceptions",
    "-fno-rtti",
    "-shared",
    "-pthread",
]


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


STUBS = """#include <cstdint>
extern "C" {
int32_t record_init(void**);
int32_t record_load(void*, int32_t);
int32_t record_fake(int32_t, const char*, void**, int32_t);
int32_t record_rows(int32_t, const char*, void**, int32_t);
void stub_init(void** arguments) {
  *static_cast<int32_t*>(arguments[1]) = record_init(*static_cast<void***>(arguments[0]));
}
void stub_load(void** arguments) {
  void* library = **static_cast<void***>(arguments[0]);
  *static_cast<int32_t*>(arguments[2]) = record_load(library, *static_cast<int32_t*>(arguments[1]));
}
"""


def stubs(manifest):
    """Write the C++ of the kernels that have no object: their entries call the recorder."""
    lines = []
    of_both = zip(("record_fake", "record_rows"), (manifest.kernels, manifest.row_kernels), strict=True)
    for record, index, entry in ((name, i, x) for name, kernels in of_both for i, x in enumerate(kernels)):
        takes = f'"{" ".join(entry.signature)}"'
        lines += [
            f"void {entry.entry_symbol}(void** arguments, int32_t count) {{",
            f"  *static_cast<int32_t*>(arguments[count - 1]) = {record}({index}, {takes}, arguments, count);\n}}",
            f'void {entry.init_symbol}(void**) __attribute__((alias("stub_init")));',
            f'void {entry.load_symbol}(void**) __attribute__((alias("stub_load")));',
        ]
    return "\n".join([STUBS, *lines, "}", ""])


def library_sources(manifest, directory, objects=None, *, binding=False):
    """Render the library over the recorder; without objects, every kernel is a stub. Return what it is compiled of.

    Without the binding there is no package either, for which a whole table would be written and read again.
    """
    write((render if binding else render_library)(manifest, read_templates()), directory)
    left_out = REPLACED_SOURCES | (set() if binding else BINDING_SOURCES)
    sources = sorted(path for path in (directory / "src").glob("*.cc") if path.stem not in left_out)
    if objects is None:
        (directory / "stubs.cc").write_text(stubs(manifest))
        sources.append(directory / "stubs.cc")
    includes = [f"-I{directory}/include", f"-I{directory}/src", *([f"-I{dlpack_dir()}"] if binding else [])]
    return [*includes, *sources, RECORDER, ROW_RECORDER, CHOOSER, *(objects or [])]


def compile_library(manifest, directory, objects=None, *, binding=False, flags=()):
    """Build the library over the recorder, linked as CMakeLists.txt links it; return its path.

    Each source is compiled alone, so that it includes what it uses, but where a test has flags of its own.
    """
    arguments = [str(x) for x in library_sources(manifest, directory, objects, binding=binding)]
    includes = [Path(x[2:]) for x in arguments if x.startswith("-I")]
    files = [Path(x) for x in arguments if not x.startswith("-I")]
    own = [x for x in flags if not x.startswith("-Wl,")]
    files = native.in_groups(files, directory) if own else files
    # A sanitizer would take ten seconds for the stubs of a large table, in which there is nothing to be found.
    files = [native.object_of(x, native.GCC, ["-O0", "-fPIC"]) if x.name == "stubs.cc" else x for x in files]
    name = library_name(manifest)
    links = ["-shared", f"-Wl,-soname,{name}", "-Wl,-Bsymbolic", *(x for x in flags if x.startswith("-Wl,"))]
    compiling = [*(x for x in FLAGS if x != "-shared"), *own]
    folder = directory / "python" / manifest.module
    folder.mkdir(parents=True, exist_ok=True)
    return native.link(files, folder / name, native.GCC, compiling, links, includes)


def compile_installed(manifest, directory, flags=()):
    """Build the Python package over the recorder, as it is installed; return its folder."""
    library = compile_library(manifest, directory, binding=True, flags=flags)
    shutil.copytree(directory / "include", library.parent / "include", dirs_exist_ok=True)
    record_build(library.parent)
    return library.parent


def compile_package(manifest, directory):
    """Build the Python package over the recorder and import it."""
    folder = compile_installed(manifest, directory)
    sys.path.insert(0, str(folder.parent))
    for name in ("_check", "_library", "_manifest", "_table"):
        import_module(f"{manifest.module}.{name}")
    return import_module(manifest.module)


def record_build(folder):
    """Write `_build.json` of a package's folder, as its CMakeLists.txt does; gives what it says."""
    files = [x for x in sorted(folder.rglob("*")) if x.is_file() and "__pycache__" not in x.parts]
    entries = {
        str(x.relative_to(folder)): {"num_bytes": x.stat().st_size, "sha256": sha256(x)}
        for x in files
        if x.name != "_build.json"
    }
    (folder / "_build.json").write_text(json.dumps(entries))
    return entries


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_package(package, directory):
    """Copy an imported package, to damage the copy."""
    ignore = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(Path(package.__file__).parent, directory / package.__name__, ignore=ignore))


def _data(array):
    assert array.dtype == np.int64
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


class Library:
    """A library under test; without a path, the one that the process began with."""

    def __init__(self, path, mode=ctypes.DEFAULT_MODE):
        self.c = ctypes.CDLL(None if path is None else str(path), mode=mode)
        self.c.aot_gemm_last_error.restype = ctypes.c_char_p
        self.c.aot_gemm_kernel_name.restype = ctypes.c_char_p
        self.c.aot_gemm_version.restype = ctypes.c_char_p
        self.c.aot_gemm_arch.restype = ctypes.c_char_p
        self.c.aot_gemm_misses_file.restype = ctypes.c_char_p
        self.c.aot_gemm_table_target.restype = ctypes.c_char_p

    def error(self):
        return self.c.aot_gemm_last_error().decode()

    def misses_file(self):
        path = self.c.aot_gemm_misses_file()
        return None if path is None else path.decode()

    def select(self, problem):
        selection = Selection(ctypes.sizeof(Selection))
        status = self.c.aot_gemm_select(ctypes.byref(problem), ctypes.byref(selection))
        return status, selection

    def set_device(self, device, name, num_sms, bandwidth_gb_per_s):
        """Say what a device is that the library has not asked about yet."""
        self.c.recorder_set_device(device, name.encode(), num_sms, ctypes.c_int64(bandwidth_gb_per_s))

    def device_table(self, device):
        """Return the status, the table that answers for a device, and why."""
        table, reason = ctypes.c_int32(-1), ctypes.c_char_p()
        status = self.c.aot_gemm_device_table(device, ctypes.byref(table), ctypes.byref(reason))
        return status, table.value, (reason.value or b"").decode()

    def choices(self, device=-1):
        """Return the status, and the hash of what decides on a device."""
        sha256 = ctypes.c_char_p()
        status = self.c.aot_gemm_choices(device, ctypes.byref(sha256))
        return status, (sha256.value or b"").decode()

    def launch(self, problem, workspace=0, num_bytes=0, stream=0):
        arguments = (ctypes.c_void_p(workspace), ctypes.c_size_t(num_bytes), ctypes.c_void_p(stream))
        return self.c.aot_gemm_launch(ctypes.byref(problem), *arguments)

    def launch_allocating(self, problem, allocate, stream=0):
        """Launch with a function of a context, here 0xC0, and a number of bytes that gives an address."""
        arguments = (ALLOCATE(allocate), ctypes.c_void_p(0xC0), ctypes.c_void_p(stream))
        return self.c.aot_gemm_launch_allocating(ctypes.byref(problem), *arguments)

    def launch_kernel(self, kernel, problem, workspace=0, num_bytes=0, stream=0, tile_order=0):
        arguments = (ctypes.c_void_p(workspace), ctypes.c_size_t(num_bytes), ctypes.c_void_p(stream))
        if tile_order == 0:
            return self.c.aot_gemm_launch_kernel(kernel, ctypes.byref(problem), *arguments)
        return self.c.aot_gemm_launch_kernel_in_order(kernel, tile_order, ctypes.byref(problem), *arguments)

    def workspace_bytes(self, problem, kernel=None):
        size = ctypes.c_size_t()
        if kernel is None:
            status = self.c.aot_gemm_workspace_bytes(ctypes.byref(problem), ctypes.byref(size))
        else:
            status = self.c.aot_gemm_kernel_workspace_bytes(kernel, ctypes.byref(problem), ctypes.byref(size))
        assert status == 0, self.error()
        return size.value

    def choose(self, section, shapes):
        """Look up int64 shapes, (m, n, k, aligned) each; gives (kernel, tier, index, order) of each."""
        choices = np.empty((len(shapes), 4), np.int64)
        self.c.chooser_choose(ctypes.c_int32(section), ctypes.c_int64(len(shapes)), _data(shapes), _data(choices))
        return choices

    def round_up(self, values, edges):
        """Round int64 values; gives the index of each one's edge."""
        indices = np.empty(len(values), np.int64)
        self.c.chooser_round_up(
            ctypes.c_int64(len(values)), _data(values), ctypes.c_int32(len(edges)), _data(edges), _data(indices)
        )
        return indices

    def count(self, call):
        return self.c.recorder_count(call)

    def _all(self, kind, name):
        records = []
        plural = f"{name}s" if name in {"clear", "order"} else name
        for index in range(getattr(self.c, f"recorder_num_{plural}")()):
            record = kind()
            getattr(self.c, f"recorder_{name}")(index, ctypes.byref(record))
            records.append(record)
        return records

    def fake_launches(self):
        return self._all(FakeLaunch, "fake")

    def real_launches(self):
        return self._all(RealLaunch, "real")

    def orders(self):
        """Return the pairs of streams that were ordered, and how many launches came before."""
        return self._all(Order, "order")

    def clears(self):
        return self._all(Clear, "clear")


APART = (1 << 40, 2 << 40, 3 << 40)
"""Addresses of A, B and D further apart than any problem of the tests reaches."""


FIRST_OPERATION = 1 << 16
"""kFirstOperationId of operation.h."""


CALLS = ("bf16", "fp16", "bf16_bias")
"""The operations of `random_manifest` by their places in the library."""
BIAS = 0x7A0000000


def names_of(operation):
    """Return what `problem` takes for an operation of `random_manifest`."""
    bias = BIAS if operation.has_bias else None
    return {"dtype": CALLS.index(operation.call), "layout": operation.layout.value, "bias": bias}


def problem(m, n, k, *, dtype=0, layout="kk", data=APART, device=-1, strides=None, flags=0, bias=None):
    """Make a problem of contiguous operands, or of the three pairs of strides given.

    `dtype` is the place of the operation in the library: element types first, then those with a bias. `bias` is an
    address, or an address and a stride.
    """
    a = (k, 1) if layout[0] == "k" else (1, m)
    b = (k, 1) if layout[1] == "k" else (1, n)
    pairs = strides or (a, b, (n, 1))
    tensors = [TensorStruct(address, pair) for address, pair in zip(data, pairs, strict=True)]
    added = TensorStruct() if bias is None else TensorStruct(*((bias, (0, 1)) if isinstance(bias, int) else bias))
    operation = FIRST_OPERATION + dtype
    return ProblemStruct(ctypes.sizeof(ProblemStruct), operation, device, m, n, k, *tensors, flags, added)


def _orders(rng, count):
    """Draw orders of tiles, of which as many are none as are."""
    return [rng.choice((None, rng.randrange(NUM_ORDERS))) for _ in range(count)]


def _rows(rng, count, kernels, multiples):
    plain = [i for i in kernels if multiples[i] == (1, 1)]
    return tuple(
        Row(
            rng.choice(kernels),
            rng.choice(plain),
            rounded_up(rng.uniform(1, 99)),
            "measured",
            rng.choice(kernels),
            100.0,
            order,
        )
        for order in _orders(rng, count)
    )


def _edges(rng, count):
    return tuple(sorted(rng.sample(range(1, 20000), count)))


def _columns(rng, count, kernels):
    """Make columns of one step to nine, the last edge of some the largest that there is."""
    edges = [(*_edges(rng, rng.randint(1, 8)), *rng.choice(((), (MAX_STEP_M,)))) for _ in range(count)]
    orders = (rng.choice((None, tuple(x or 0 for x in _orders(rng, len(steps))))) for steps in edges)
    return tuple(Column(x, tuple(rng.choice(kernels) for _ in x), y) for x, y in zip(edges, orders, strict=True))


OPERATIONS = (
    *(Operation.of(ElementType.BFLOAT16, layout) for layout in Layout),
    *(Operation.of(ElementType.FLOAT16, layout) for layout in (Layout.KK, Layout.KN)),
    Operation.BF16_KK_BIAS,
)


def random_manifest(seed=1, operations=OPERATIONS):
    """Make a manifest of random tables of some operations, whose kernels need not be ones that a family has.

    Some take whole tiles only, some read B early; the first of each operation is its fallback.
    """
    rng = random.Random(seed)
    kernels, sections = [], []
    for operation in operations:
        first = len(kernels)
        kernels.append(kernel(operation, FALLBACK, num_strides=2))
        for tile, swap, family in ((64, False, QUACK), (128, True, OVERLAP), (256, False, QUACK)):
            multiples = (tile, 16) if tile == 256 else (1, 1)
            candidate = gemm_candidate(family, tile, 32, rng.choice((1, 2)), rng.choice((1, 2)), swap_ab=swap)
            kernels.append(kernel(operation, candidate, multiples=multiples))
        for mode in ("serial", "parallel", "separate", "tail"):
            family = OVERLAP if mode == "parallel" else QUACK
            candidate = gemm_candidate(family, 64, 48, 1, 2, swap_ab=mode == "serial", split_k=3, split_k_mode=mode)
            kernels.append(kernel(operation, candidate))
        indices = list(range(first + 1, len(kernels)))
        multiples = {i: (kernels[i].m_multiple, kernels[i].n_multiple) for i in indices}
        pairs = sorted({(rng.choice((64, 4096, 5120)), rng.choice((64, 72, 4096))) for _ in range(5)})
        edges = [_edges(rng, rng.randint(1, 9)) for _ in pairs]
        ladders = [
            Ladder(*pair, x, _rows(rng, len(x), indices, multiples)) for pair, x in zip(pairs, edges, strict=True)
        ]
        axes = [_edges(rng, rng.randint(1, 6)) for _ in range(2)]
        columns = _columns(rng, len(axes[0]) * len(axes[1]), [i for i in indices if multiples[i] in ((1, 1), (1, 8))])
        sections.append(Section(operation, tuple(ladders), Grid(*axes, columns), first))
    return with_table(golden_manifest(), tuple(kernels), DispatchTable(tuple(sections)))


def with_one_order(manifest):
    """Have a random manifest's tables answer with kernels that do not split k, so that all add it up in one order."""
    (table,) = manifest.tables
    kernels = manifest.kernels

    def plain(section, index):
        return index if kernels[index].candidate.gemm.split_k == 1 else section.fallback + 1

    def row(section, old):
        places = {name: plain(section, getattr(old, name)) for name in ("kernel", "general", "runner_up")}
        return replace(old, **places, tile_order=None)

    def column(section, old):
        return replace(old, kernels=tuple(plain(section, x) for x in old.kernels), tile_orders=None)

    sections = []
    for section in table.table.sections:
        ladders = (replace(x, rows=tuple(row(section, y) for y in x.rows)) for x in section.ladders)
        grid = replace(section.grid, columns=tuple(column(section, x) for x in section.grid.columns))
        sections.append(replace(section, ladders=tuple(ladders), grid=grid))
    return with_table(manifest, kernels, DispatchTable(tuple(sections)))
