"""Programs that were compiled against an older or newer header, or the one without `struct_bytes`; sizes and nulls."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime.host import Selection, problem
from tests.struct_layout import INCLUDE, layout_of_ctypes, layout_of_header

HEADER = (INCLUDE / "aot_gemm.h").read_text()
CALLER = Path(__file__).with_name("caller.c")
SIZE_LINES = re.compile(r"^  uint64_t struct_bytes;.*\n", re.MULTILINE)
ADDED = ("bias", "scale_a", "scale_b", "residual", "scale_d")
"""Fields of the problem that headers after the first with `struct_bytes` have."""
GROUPS = (
    *("num_groups", "group_strides", "offsets", "index", "rows_of_a", "b_of_groups", "parts", "num_parts"),
    *("scale_b_of_groups", "own_d", "factors_d"),
)
"""The further ones, of batches, groups, several weights and a D with factors."""
PROBLEM_BYTES, OLD_PROBLEM_BYTES, FLAGS_BYTE = 440, 120, 112
NO_LAUNCH = "1 1 1 1 1 1 1\n0"
EARLY = ["1", "1", "1"]


def line_of(*fields):
    """Return what matches the line of any of the problem's fields of these names, behind those of A, B and D."""
    types = "aot_gemm_tensor_t|aot_gemm_group_strides_t|int64_t|const void\\* const\\*|const aot_gemm_part_t\\*"
    return re.compile(rf"^  (?:{types}) (?:{'|'.join(fields)});.*\n", re.MULTILINE)


def replaced(pattern, text, count):
    """Replace each line that matches in the header, of which there must be so many."""
    changed, found = pattern.subn(text, HEADER)
    assert found == count
    return changed


HEADERS = {
    "current": HEADER,
    "older": replaced(line_of(*ADDED, *GROUPS), "", 17),
    "before_scales": replaced(line_of(*ADDED[1:], *GROUPS), "", 16),
    "newer": replaced(line_of(GROUPS[-1]), f"  aot_gemm_tensor_t {GROUPS[-1]};\n  uint64_t further[2];\n", 1),
    "before": replaced(SIZE_LINES, "", 2),
}


@pytest.fixture(scope="session")
def run(golden_path, tmp_path_factory):
    """Compile the caller against a header, once, and run it; gives its lines."""
    directory = tmp_path_factory.mktemp("callers")

    def call(age, *arguments):
        program = directory / age / "caller"
        if not program.exists():
            shutil.copytree(INCLUDE, program.parent)
            (program.parent / "aot_gemm.h").write_text(HEADERS[age])
            flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", *([] if age == "before" else ["-DHAS_STRUCT_BYTES"])]
            links = [golden_path, f"-Wl,-rpath,{golden_path.parent}"]
            subprocess.run(["gcc", *flags, f"-I{program.parent}", CALLER, *links, "-o", program], check=True)
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


def bytes_of(value, at):
    return [f"{at + i}={byte}" for i, byte in enumerate(value.to_bytes(8, "little"))]


def test_a_program_of_this_header_is_served(run):
    assert run("current", "bf16", -1) == ["0 0 0 0 0 0 0", "3 0 0 0", ""]
    promised = run("current", "bf16", -1, *bytes_of(1, FLAGS_BYTE))
    assert promised[:2] == ["0 0 0 0 0 0 0", " ".join(["3", *EARLY])]
    refused = run("current", "bf16", -1, *bytes_of(16, FLAGS_BYTE))
    assert "\n".join(refused).startswith(NO_LAUNCH)
    assert refused[2].startswith("flags are 0x10; expected ")


@pytest.mark.parametrize(("age", "num_bytes"), [("older", OLD_PROBLEM_BYTES), ("before_scales", 144)])
def test_the_operands_that_an_older_program_does_not_know_count_as_none(run, age, num_bytes):
    """The bytes behind its problem, where those operands would be, are all ones: nothing reads them."""
    assert run(age, "bf16", -1) == ["0 0 0 0 0 0 0", "3 0 0 0", ""]
    assert run(age, "bf16", -1, *bytes_of(1, num_bytes))[:2] == ["0 0 0 0 0 0 0", "3 0 0 0"]
    assert run(age, "bf16", -1, *bytes_of(1, FLAGS_BYTE))[1] == " ".join(["3", *EARLY])


@pytest.mark.parametrize("dtype", [0, 1])
def test_the_element_type_of_an_older_program_is_no_operation(run, dtype):
    """Where the operation stands now, 0 was bfloat16 and 1 float16: neither is computed as something else."""
    refused = "\n".join(run("older", dtype, -1))
    assert refused == (
        f"2 2 2 2 2 2 2\n0\noperation {dtype} is unknown; expected a number that aot_gemm_operation returned in this "
        "process"
    )


def test_zeros_in_a_newer_programs_fields_are_taken(run):
    assert run("newer", "bf16", -1) == ["0 0 0 0 0 0 0", "3 0 0 0", ""]
    assert run("newer", "bf16", -1, *bytes_of(1, FLAGS_BYTE))[:2] == ["0 0 0 0 0 0 0", " ".join(["3", *EARLY])]


@pytest.mark.parametrize("byte", [PROBLEM_BYTES, PROBLEM_BYTES + 5, PROBLEM_BYTES + 15])
def test_anything_else_in_a_newer_programs_fields_is_refused(run, byte):
    assert "\n".join(run("newer", "bf16", -1, f"{byte}=4")) == (
        f"{NO_LAUNCH}\n"
        f"the problem has 456 bytes, and byte {byte} of it, which this library does not know, is not 0; expected 440 "
        "bytes, or zeros past them; use a library as new as the program's aot_gemm.h"
    )


@pytest.mark.parametrize("dtype", [0, 1, 7])
@pytest.mark.parametrize("device", [-1, 0, 1, 7, 63])
def test_a_program_of_before_struct_bytes_is_refused(run, dtype, device):
    """Its element type and device are read as the size, which they never are."""
    size = (device % 2**32) << 32 | dtype
    assert "\n".join(run("before", dtype, device)) == (
        f"{NO_LAUNCH}\n"
        f"struct_bytes of the problem is {size}; expected sizeof(aot_gemm_problem_t), 440 here and at least 120; set "
        "it, or compile the program with the aot_gemm.h of this library (ABI version 1)"
    )


@pytest.mark.parametrize("num_bytes", [0, 1, 112, 119, 4097, 2**32, 2**64 - 1])
def test_sizes_that_no_header_has_are_refused(library, num_bytes):
    stated = problem(64, 64, 64)
    stated.struct_bytes = num_bytes
    assert (library.launch(stated), library.fake_launches()) == (1, [])
    assert library.error().startswith(f"struct_bytes of the problem is {num_bytes}; expected sizeof")


@pytest.mark.parametrize("num_bytes", [0, 8, 55])
def test_a_selection_too_small_is_refused_and_left_alone(library, num_bytes):
    selection = (ctypes.c_ubyte * 56)(*(num_bytes).to_bytes(8, "little"), *[0xAB] * 48)
    before = bytes(selection)
    assert ctypes.sizeof(Selection) == 80
    assert library.c.aot_gemm_select(ctypes.byref(problem(64, 64, 64)), selection) == 1
    assert bytes(selection) == before
    assert library.error() == (
        f"struct_bytes of the selection is {num_bytes}; expected sizeof(aot_gemm_selection_t), at least 56; set it"
    )


@pytest.mark.parametrize("num_bytes", [56, 57, 60])
def test_a_selection_of_an_older_header_gets_what_it_has_room_for(library, num_bytes):
    stated = problem(64, 72, 80)
    written = (ctypes.c_ubyte * 200)(*num_bytes.to_bytes(8, "little"), *[0xAB] * 192)
    assert library.c.aot_gemm_select(ctypes.byref(stated), written) == 0
    _, expected = library.select(stated)
    assert bytes(written)[8:num_bytes] == bytes(expected)[8:num_bytes]
    assert bytes(written)[num_bytes:] == b"\xab" * (200 - num_bytes)


@pytest.mark.parametrize("num_bytes", [64, 65, 200, 2**64 - 1])
def test_no_byte_past_a_selection_is_written(library, num_bytes):
    stated = problem(64, 72, 80)
    written = (ctypes.c_ubyte * 200)(*num_bytes.to_bytes(8, "little"), *[0xAB] * 192)
    assert library.c.aot_gemm_select(ctypes.byref(stated), written) == 0
    size = min(num_bytes, 80)
    assert bytes(written)[size:] == b"\xab" * (200 - size)
    selection = Selection.from_buffer(written)
    _, expected = library.select(stated)
    assert selection.struct_bytes == num_bytes
    known = [name for name, _ in Selection._fields_[1:] if getattr(Selection, name).offset < size - size % 8]
    values = [[getattr(x, name) for name in known] for x in (selection, expected)]
    assert values[0] == values[1]
    assert values[0][8 - 2 : 8 + 3] == [64, 72, 80, 0, 0]
    assert (expected.num_groups, expected.num_launches) == (1, 1)


def test_the_selection_of_the_tests_is_that_of_the_header(tmp_path):
    assert layout_of_ctypes(Selection) == layout_of_header(Selection, "aot_gemm_selection_t", tmp_path)


def test_a_selection_is_left_alone_where_the_problem_is_refused(library):
    written = (ctypes.c_ubyte * 56)(56, *[0] * 7, *[0xAB] * 48)
    assert library.c.aot_gemm_select(ctypes.byref(problem(-1, 64, 64)), written) == 3
    assert bytes(written)[8:] == b"\xab" * 48


def test_the_library_says_which_abi_it_has(library):
    (version,) = re.findall(r"^#define AOT_GEMM_ABI_VERSION (\d+)$", HEADER, re.MULTILINE)
    assert library.c.aot_gemm_abi_version() == int(version)


STATED = ctypes.byref(problem(64, 64, 64))
SIZE, COUNT = ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_int32())
NULLS = [
    ("select", (None, ctypes.byref(Selection(56))), "problem"),
    ("select", (STATED, None), "selection"),
    ("workspace_bytes", (None, SIZE), "problem"),
    ("workspace_bytes", (STATED, None), "num_bytes"),
    ("launch", (None, None, ctypes.c_size_t(0), None), "problem"),
    ("launch_allocating", (None, None, None, None), "problem"),
    ("launch_allocating", (STATED, None, None, None), "allocate"),
    ("kernel_workspace_bytes", (0, None, SIZE), "problem"),
    ("kernel_workspace_bytes", (0, STATED, None), "num_bytes"),
    ("launch_kernel", (0, None, None, ctypes.c_size_t(0), None), "problem"),
    ("kernel_max_active_clusters", (0, None, None, ctypes.c_size_t(0), COUNT), "problem"),
    ("kernel_max_active_clusters", (0, STATED, None, ctypes.c_size_t(0), None), "num_clusters"),
]


@pytest.mark.parametrize(("function", "arguments", "name"), NULLS)
def test_null_pointers_are_named(library, function, arguments, name):
    assert getattr(library.c, f"aot_gemm_{function}")(*arguments) == 1
    assert library.error() == f"`{name}` is null; expected an address"
    assert library.fake_launches() == []
