"""The program that launches the wheel's kernels over the recorder, for x86-64 and for AArch64: built, run, read."""

from __future__ import annotations

import ctypes
import platform
import struct
import subprocess
from pathlib import Path

import pytest

from aot.measure.call_structs import B_CONSTANT, CURRENT_DEVICE, ProblemStruct, RowsProblemStruct, TensorStruct
from aot.package.build import read_templates, write
from aot.package.render import render_library
from tests import native
from tests.equivalence.launch import Reader
from tests.package.userland import aarch64_emulator
from tests.runtime.host import BINDING_SOURCES, RECORDER, REPLACED_SOURCES

PROGRAM = Path(__file__).with_name("replay.cc")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti"]
# Without symbols, as the wheels are linked: zig then takes what it has built for these.
LINK_FLAGS = ["-Wl,-s"]
# Differs, so that what a launch takes from the stack unwritten would differ too.
STACK_BYTES = {"x86_64": 0x5A, "aarch64": 0xA5}
SHAPE = 3  # AOT_GEMM_ERROR_SHAPE
HEAD = struct.Struct("<iii60sQq")
"""The kernel, the number of its parameters, whether it is of rows, the tag of its operation, the stream and the order
of its tiles."""


def build(compiled, directory):
    """Build the program for one host with the compiler that builds the wheels; gives its path."""
    target = compiled.target
    write(render_library(compiled.manifest, read_templates()), directory)
    sources = [x for x in sorted((directory / "src").glob("*.cc")) if x.stem not in REPLACED_SOURCES | BINDING_SOURCES]
    includes = [directory / "include", directory / "src", RECORDER.parent]
    files = [*native.in_groups(sources, directory), RECORDER, PROGRAM, *compiled.objects.values()]
    return native.link(files, directory / "replay", native.zig(target), FLAGS, LINK_FLAGS, includes)


def emulator(machine):
    """Give the command before a program of a machine that runs it here; skips the test where there is none."""
    if platform.machine() == machine:
        return []
    if machine == "aarch64":
        return aarch64_emulator()
    pytest.skip(f"LAUNCHES NOT COMPARED: this machine is {platform.machine()} and cannot run {machine} programs")


def _request(index, kernel, sizes, case):
    tensors = [TensorStruct(x.address, tuple(x.strides)) for x in (case.a, case.b, case.d)]
    problem = ProblemStruct(
        ctypes.sizeof(ProblemStruct), 0, CURRENT_DEVICE, case.m, case.n, case.k, *tensors, B_CONSTANT
    )
    return stated(index, kernel.operation.call, sizes, problem, case.stream, case.tile_order)


def stated(index, tag, sizes, problem, stream, tile_order=0):
    """Give the bytes of one request: a product or an operation on rows, as the struct that the C API takes."""
    is_of_rows = isinstance(problem, RowsProblemStruct)
    head = HEAD.pack(index, len(sizes), is_of_rows, tag.encode(), stream, tile_order)
    lists = () if is_of_rows else (problem.b_of_groups, problem.scale_b_of_groups)
    separate = [x for addresses in lists if addresses for x in addresses[: problem.num_groups]]
    return head + bytes(problem) + struct.pack(f"<{len(sizes)}i{len(separate)}Q", *sizes, *separate)


def replay(program, target, requests):
    """Launch problems and give an answer for each; a launch may only be refused for its shape.

    Args:
        program: what `build` built.
        target: what it was built for.
        requests: (index of the kernel, kernel, sizes of its parameters, case) of each launch.
    """
    return answers(program, target, [_request(*x) for x in requests], [sizes for _, _, sizes, _ in requests])


def answers(program, target, requests, sizes, *, has_divisors=True):
    """Send requests as `stated` makes them, and read the answers of kernels whose parameters have these sizes."""
    header = struct.pack("<3i", *target.compute_capability, STACK_BYTES[target.machine])
    content = header + b"".join(requests)
    done = subprocess.run([*emulator(target.machine), program], input=content, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    reader = Reader(done.stdout, has_divisors=has_divisors)
    found = [reader.answer(x) for x in sizes]
    assert reader.at_end
    assert {x.status for x in found} <= {0, SHAPE}, done.stderr.decode()[-4000:]
    return found
