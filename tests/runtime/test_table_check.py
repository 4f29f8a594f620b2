"""A library whose table contradicts itself: each query and launch says where, and the package raises.

The reader of manifests refuses such tables; so the rendered table.cc is damaged here.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from aot.core.dispatch import MAX_STEP_KERNELS, MAX_STEP_M, Column, DispatchTable, Grid, Section
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.signature import Argument, signature_of
from aot.package.enumerations import argument_bits
from tests import native
from tests.compiling import some
from tests.golden.manifest import FALLBACK, golden_manifest, kernel, with_table
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.tensors import FakeTensor

HALF = Operation.of(ElementType.FLOAT16)
HALF_FALLBACK = 5
"""Index of the kernel that is added to the golden ones, which are the fallback of kk, a kernel of whole tiles, two that
take all shapes, and the fallback of kn."""
BIG = "bf16_kk_sm90_quack_128x256_c2x1_coop"
NOT_ASCENDING = "its edges do not ascend, or its first row is not"
STEPS_TURNED = "of its grid: its edges do not ascend"
NO_STEP = "of 6 cannot stand in its grid"
UNSCALED = (
    "\n     Scale::kNone,\n     {Element::kFloat32, 0},\n     {Element::kFloat32, 0},\n     "
    "{WeightFormat::kNone},\n     Epilogue::kNone,\n     "
)
BEHIND_BIAS = (
    "false,\n     false,\n     16,\n     16,\n     1,\n     true,\n     1,\n     Grouping::kDense,\n     -1,\n     "
)
HALF_REST = f"{UNSCALED}Presence::kNone,\n     {BEHIND_BIAS}"
PLAIN = signature_of(HALF, has_workspace=False, prefetches_b=False)


def step(m, number):
    """Write a step of a column as the table has it, with the number of a kernel in the section's list."""
    return str(m * MAX_STEP_KERNELS + number)


GRID_0 = "kGrid0Kernels, 2},\n     "
NO_LADDERS = "1,\n     1,\n     false,\n     0,\n     false,\n     nullptr,\n     {},"
OTHER = "which is for another operation or other operands"
HALF_NAME = kernel(HALF, FALLBACK).name
ONE_NAME, SPLIT_NAME, KN_NAME = (golden_manifest().kernels[i].name for i in (0, 3, 4))
ORDER = "has order"
OF_SPLIT, OF_KN = (f"of tiles, which {x} does not take" for x in (SPLIT_NAME, KN_NAME))
DAMAGES = {
    "kernel_below": ("    {3, 3, 0},", "    {-1, 3, 0},", "section 0, ladder row 0 names kernel -1 of 6"),
    "kernel_above": ("    {1, 2, 0},\n};\nconstexpr int64_t", "    {100, 2, 0},\n};\nconstexpr int64_t",
                     "section 0, ladder row 2 names kernel 100 of 6"),
    "general_above": ("    {3, 3, 0},", "    {3, 6, 0},", "section 0, ladder row 0 names kernel 6 of 6"),
    "other_type": ("    {3, 3, 0},", "    {5, 3, 0},",
                   f"section 0, ladder row 0 names {HALF_NAME}, which is for another operation or other operands"),
    "general_of_other_type": ("    {3, 3, 0},", "    {3, 5, 0},",
                              f"section 0, ladder row 0 names {HALF_NAME}, {OTHER}"),
    "general_of_whole_tiles": ("    {3, 3, 0},", "    {3, 1, 0},",
                               f"section 0, ladder row 0: its general kernel {BIG} does not take all shapes"),
    "order_above": ("    {3, 3, 0},", "    {3, 3, 9},", f"section 0, ladder row 0 {ORDER} 9 {OF_SPLIT}"),
    "order_below": ("    {3, 3, 0},", "    {3, 3, -1},", f"section 0, ladder row 0 {ORDER} -1 {OF_SPLIT}"),
    "order_of_the_fallback": ("    {3, 3, 0},", "    {0, 3, 1},",
                              f"section 0, ladder row 0 {ORDER} 1 of tiles, which {ONE_NAME} does not take"),
    "order_of_the_grid": ("kGrid0Orders[] = {0, 0}", "kGrid0Orders[] = {0, 9}",
                          f"section 0: its grid {ORDER} 9 {OF_SPLIT}"),
    "order_of_the_grid_of_the_fallback": ("kGrid1Orders[] = {0}", "kGrid1Orders[] = {1}",
                                          f"section 1: its grid {ORDER} 1 {OF_KN}"),
    "edges_equal": ("{16, 256, 4096}", "{16, 256, 256}", f"section 0, ladder 0: {NOT_ASCENDING} 0"),
    "edges_turned": ("{16, 256, 4096}", "{256, 16, 4096}", f"section 0, ladder 0: {NOT_ASCENDING} 0"),
    "edge_of_zero": ("{16, 256, 4096}", "{0, 256, 4096}", f"section 0, ladder 0: {NOT_ASCENDING} 0"),
    "no_edge": ("kLadder0x1Rows, 1, 3}", "kLadder0x1Rows, 0, 3}", f"section 0, ladder 1: {NOT_ASCENDING} 3"),
    "first_row": ("kLadder0x1Rows, 1, 3}", "kLadder0x1Rows, 1, 2}", f"section 0, ladder 1: {NOT_ASCENDING} 3"),
    "ladders_turned": ("    {14336, 4096,", "    {4096, 2048,",
                       "section 0, ladder 1 does not come after the one before it"),
    "ladders_equal": ("    {14336, 4096,", "    {4096, 4096,",
                      "section 0, ladder 1 does not come after the one before it"),
    "ladders_below": ("kLadders0,\n     2,", "kLadders0,\n     -1,", "section 0 has -1 ladders"),
    "ladders_nowhere": (NO_LADDERS.format(0), NO_LADDERS.format(1), "section 1 has 1 ladders"),
    "grid_n": ("NEdges[] = {1024, 8192}", "NEdges[] = {-1, 8192}", "section 0: the edges of its grid do not ascend"),
    "grid_k": ("1, 1, kGrid1Orders, kGrid1Kernels", "1, 0, kGrid1Orders, kGrid1Kernels",
               "section 1: the edges of its grid do not ascend"),
    "grid_k_equal": ("KEdges[] = {1024, 8192}", "KEdges[] = {1024, 1024}",
                     "section 0: the edges of its grid do not ascend"),
    "columns_late": ("{0, 2, 3, 6, 8}", "{1, 2, 3, 6, 8}", "section 0: the first column of its grid starts late"),
    "column_empty": ("{0, 2, 3, 6, 8}", "{0, 2, 3, 3, 8}", "section 0: column 2 of its grid has no step"),
    "column_turned": ("{0, 2, 3, 6, 8}", "{0, 2, 7, 6, 8}", "section 0: column 2 of its grid has no step"),
    "column_of_none": ("{0, 1};\nconstexpr uint32_t kGrid1", "{0, 0};\nconstexpr uint32_t kGrid1",
                       "section 1: column 0 of its grid has no step"),
    "column_too_long": ("{0, 2, 3, 6, 8}", "{0, 3, 4, 6, 8}", f"section 0, column 0 {STEPS_TURNED}"),
    "steps_equal": (step(16, 1) + ", " + step(64, 0), step(16, 1) + ", " + step(16, 0),
                    f"section 0, column 2 {STEPS_TURNED}"),
    "steps_turned": (step(16, 1) + ", " + step(64, 0), step(64, 0) + ", " + step(16, 1),
                     f"section 0, column 2 {STEPS_TURNED}"),
    "step_of_zero": (step(16, 1) + ", ", step(0, 1) + ", ", f"section 0, column 2 {STEPS_TURNED}"),
    "step_kernel_above": (step(16, 1) + ", ", step(16, 2) + ", ",
                          "section 0, column 2 of its grid names choice 2 of its 2"),
    "step_kernel_far_above": (step(MAX_STEP_M, 1), step(MAX_STEP_M, 4095),
                              "section 0, column 3 of its grid names choice 4095 of its 2"),
    "fewer_kernels_than_the_section_of_the_same_steps": (
        "kGrid2Kernels, 1}", "kGrid2Kernels, 0}", "section 2, column 0 of its grid names choice 0 of its 0"),
    "grid_kernel_below": ("Kernels[] = {2, 3}", "Kernels[] = {-1, 3}", f"section 0: kernel -1 {NO_STEP}"),
    "grid_kernel_above": ("Kernels[] = {2, 3}", "Kernels[] = {2, 6}", f"section 0: kernel 6 {NO_STEP}"),
    "grid_kernel_of_whole_tiles": ("Kernels[] = {2, 3}", "Kernels[] = {1, 3}", f"section 0: kernel 1 {NO_STEP}"),
    "grid_kernel_of_other_type": ("Kernels[] = {2, 3}", "Kernels[] = {2, 5}", f"section 0: kernel 5 {NO_STEP}"),
    "grid_kernel_of_other_layout": ("Kernels[] = {4}", "Kernels[] = {2}", f"section 1: kernel 2 {NO_STEP}"),
    "grid_kernel_of_the_section_of_the_same_steps": (
        "Kernels[] = {5}", "Kernels[] = {4}", f"section 2: kernel 4 {NO_STEP}"),
    "fallback_of_other_type": (GRID_0 + "0,", GRID_0 + "5,",
                 "section 0: kernel 5 cannot be its fallback"),
    "fallback_of_one_stride": (GRID_0 + "0,", GRID_0 + "2,",
                 "section 0: kernel 2 cannot be its fallback"),
    "fallback_above": (GRID_0 + "0,", GRID_0 + "6,",
                 "section 0: kernel 6 cannot be its fallback"),
    "substitute_that_waits": ("     0,\n     2,\n     0,\n     0},", "     0,\n     3,\n     0,\n     0},",
                              "section 0: kernel 3 cannot stand for those that need more SMs"),
    "substitute_of_whole_tiles": ("     0,\n     2,\n     0,\n     0},", "     0,\n     1,\n     0,\n     0},",
                                  "section 0: kernel 1 cannot stand for those that need more SMs"),
    "substitute_above": ("     0,\n     2,\n     0,\n     0},", "     0,\n     6,\n     0,\n     0},",
                         "section 0: kernel 6 cannot stand for those that need more SMs"),
    "number_of_section": ("     0,\n     2,\n     0,\n     0},", "     0,\n     2,\n     0,\n     1},",
                          "section 0 is number 1 of table 0, which is not where it is"),
    "table_of_section": ("     0,\n     2,\n     0,\n     0},", "     0,\n     2,\n     1,\n     0},",
                         "section 0 is number 0 of table 1, which is not where it is"),
    "section_of_other_layout": ("SectionOf[] = {0, 1,", "SectionOf[] = {1, 1,",
                                "table 0 has section 1 for bf16 in layout 0"),
    "section_of_above": ("SectionOf[] = {0, 1,", "SectionOf[] = {0, 3,",
                         "table 0 has section 3 for bf16 in layout 1"),
    "section_of_below": ("SectionOf[] = {0, 1,", "SectionOf[] = {-2, 1,",
                         "table 0 has section -2 for bf16 in layout 0"),
    "sections_of_table": ("kTable0SectionOf, 3}", "kTable0SectionOf, 2}", "its tables have 2 sections of 3"),
    "sections_of_table_above": ("kTable0SectionOf, 3}", "kTable0SectionOf, 4}",
                                "table 0 is for 132 SMs, and has 4 sections"),
    "sms_of_table": ("1, 132, 4800", "1, 0, 4800", "table 0 is for 0 SMs, and has 3 sections"),
    "no_table": ("kNumTables = 1", "kNumTables = 0", "it has no section"),
    "section_twice": ("    {0,\n     1,\n", "    {0,\n     0,\n", "section 1 has layout 0, or one like it came before"),
    "groups_of_kernels": ("     true,\n     3,\n     Grouping::kDense", "     true,\n     3,\n     Grouping::kGrouped",
                          "operation bf16 contradicts itself about offsets"),
    "layout_above": ("    {0,\n     1,\n", "    {0,\n     4,\n", "section 1 has layout 4, or one like it came before"),
    "type_above": ("    {1,\n     0,\n", "    {2,\n     0,\n", "section 2 is of operation 2 of 2"),
    "no_section": ("kNumSections = 3", "kNumSections = 0", "it has no section"),
    "layouts_without_section": ("true,\n     3,", "true,\n     7,",
                                "its sections of bf16 are of the layouts 0x3, and 0x7 is listed"),
    "bias_that_no_kernel_adds": (f"kFloat16,{UNSCALED}Presence::kNone", f"kFloat16,{UNSCALED}Presence::kOptional",
                                 "operation fp16 contradicts itself about bias"),
    "factors_that_no_kernel_takes": (f"kFloat16,{UNSCALED}", f"kFloat16,{UNSCALED}".replace("kNone", "kVector", 1),
                                     "operation fp16 contradicts itself about scale_a"),
    "residual_that_no_kernel_adds": (f"kFloat16,{UNSCALED}Pre",
                                     f"kFloat16,{UNSCALED}Pre".replace("logue::kNone", "logue::kResidual"),
                                     "operation fp16 contradicts itself about residual"),
    "factor_of_d_that_no_kernel_takes": (f"kFloat16,{HALF_REST}{argument_bits(PLAIN)}",
                                         f"kFloat16,{HALF_REST}{argument_bits((*PLAIN, Argument.SCALE_D))}",
                                         f"kernel {HALF_NAME} and its operation fp16 disagree about scale_d"),
    "operation_of_kernels_above": ("kNumOperations = 2", "kNumOperations = 1",
                                   f"kernel {HALF_NAME} is of operation 1 of 1"),
    "type_without_section": ("kNumSections = 3", "kNumSections = 2",
                             "table 0 has section 2 for fp16 in layout 0"),
}  # fmt: skip

TRIED = tuple(dict.fromkeys((*some(DAMAGES, 24), "no_section")))


def table_manifest():
    """Make the golden manifest with a section of float16 more."""
    golden = golden_manifest()
    section = Section(HALF, (), Grid((1,), (1,), (Column((1,), (HALF_FALLBACK,)),)), fallback=HALF_FALLBACK)
    kernels = (*golden.kernels, kernel(HALF, FALLBACK, num_strides=2))
    table = DispatchTable((*golden.tables[0].table.sections, section))
    return replace(with_table(golden, kernels, table), package="damaged-gemm")


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="session")
def link(directory):
    """Compile everything but the table, as other tests do; gives a function that links it with a table of a change."""
    arguments = [str(x) for x in host.library_sources(table_manifest(), directory, binding=True)]
    includes = [x for x in arguments if x.startswith("-I")]
    sources = [Path(x) for x in arguments if not x.startswith("-I") and not x.endswith("/table.cc")]
    flags, folders = [x for x in host.FLAGS if x != "-shared"], [Path(x[2:]) for x in includes]
    objects = [native.object_of(x, native.GCC, flags, folders) for x in sources]
    table = (directory / "src" / "table.cc").read_text()

    def build(library, old="", new=""):
        assert not old or table.count(old) == 1, (old, table.count(old))
        source = library.with_suffix(".cc")
        source.write_text(table.replace(old, new) if old else table)
        subprocess.run(["g++", *host.FLAGS, *includes, source, *objects, "-Wl,-Bsymbolic", "-o", library], check=True)
        return library

    return build


@pytest.fixture(scope="session")
def libraries(link, directory):
    """Link a library of each damage that is tried, and one of none."""
    changes = {"whole": ()} | {name: DAMAGES[name][:2] for name in TRIED}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = pool.map(lambda name: link(directory / f"{name}.so", *changes[name]), changes)
        return {name: host.Library(path) for name, path in zip(changes, paths, strict=True)}


def statuses(library, stated):
    """Call each function that looks a problem up."""
    size, workspace = ctypes.c_size_t(), (1 << 50, 1 << 40)
    yield library.select(stated)[0]
    yield library.c.aot_gemm_workspace_bytes(ctypes.byref(stated), ctypes.byref(size))
    yield library.launch(stated, *workspace)
    yield library.launch_allocating(stated, lambda context, num_bytes: workspace[0])


PROBLEMS = [
    host.problem(16, 4096, 4096),
    host.problem(64, 64, 64, layout="kn"),
    host.problem(3, 3, 3, dtype=1),
    host.problem(0, 3, 3),
]


def test_a_whole_table_has_no_fault(libraries):
    for stated in PROBLEMS:
        assert list(statuses(libraries["whole"], stated)) == [0] * 4, libraries["whole"].error()


@pytest.mark.parametrize("name", TRIED)
def test_each_query_and_launch_says_what_is_wrong(libraries, name):
    library, section = libraries[name], re.match(r"section ([012])\b", DAMAGES[name][2])
    first = PROBLEMS[int(section[1])] if section else PROBLEMS[0]  # which looks at the section that is damaged
    for stated in (first, *PROBLEMS):
        assert list(statuses(library, stated)) == [9] * 4
        expected = f"the dispatch table of this library contradicts itself: {DAMAGES[name][2]}; build it again"
        assert library.error() == expected
    assert library.fake_launches() == []


@pytest.mark.parametrize(
    ("name", "right", "wrong"), [("grid_kernel_of_other_layout", (0, 2, 3), 1), ("steps_turned", (1, 2), 0)]
)
def test_a_section_that_was_found_right_answers_beside_one_that_is_wrong(link, directory, name, right, wrong):
    library = host.Library(link(directory / f"{name}_late.so", *DAMAGES[name][:2]))
    for i in right:
        assert list(statuses(library, PROBLEMS[i])) == [0] * 4
    assert list(statuses(library, PROBLEMS[wrong])) == [9] * 4
    for i in right:
        assert list(statuses(library, PROBLEMS[i])) == [0] * 4


def test_a_kernel_that_is_named_needs_no_table(libraries):
    library = libraries["no_section"]
    assert library.launch_kernel(0, host.problem(3, 3, 3)) == 0
    assert [x.kernel for x in library.fake_launches()] == [0]


def test_the_package_raises_that_its_library_is_corrupt(link, directory, monkeypatch):
    folder = directory / "python" / "damaged_gemm"
    old, new, message = DAMAGES["kernel_above"]
    library = link(folder / "libdamaged_gemm.so.1", old, new)
    host.record_build(folder)
    monkeypatch.syspath_prepend(folder.parent)
    package = import_module("damaged_gemm")
    framework = Framework()
    calls = [
        lambda: package.plan(16, 4096, 4096),
        lambda: package.explain(1, 2, 3, "float16"),
        lambda: package.linear(framework.Tensor((16, 64)), framework.Tensor((8, 64))),
        lambda: package.matmul(FakeTensor((65, 65)), FakeTensor((65, 65)), out=FakeTensor((65, 65))),
    ]
    for call in calls:
        with pytest.raises(package.CorruptLibraryError) as caught:
            call()
        assert str(caught.value) == (
            f"the dispatch table of this library contradicts itself: {message}; build it again"
        )
    assert host.Library(library).fake_launches() == []
