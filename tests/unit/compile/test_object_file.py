"""The second gate, over objects that a host compiler makes; tests/unit/test_compile.py has the real ones."""

import subprocess
from dataclasses import replace

import nvidia.cu13
import pytest

from aot.compile import object_file
from aot.compile.object_file import OVER_LIMIT_MARKER, cubin_sm, cubins, inspect
from aot.core.errors import CompileError
from aot.core.target import load_target

H200 = load_target("h200")
CUDA = 190


def cubin(sm=90, machine=CUDA):
    """Make the header of a device image; e_flags holds the architecture."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    rest = (2).to_bytes(2, "little") + machine.to_bytes(2, "little") + (1).to_bytes(4, "little") + bytes(24)
    return ident + rest + (sm << 8 | 5).to_bytes(4, "little") + (64).to_bytes(2, "little") + bytes(10)


@pytest.fixture
def host_object(tmp_path):
    """Give a function that compiles an object with the symbols of a kernel `k` and some device images as data."""

    def make(
        *images, symbols=("_mlir_k__mlir_ciface_entry", "_mlir_k_cuda_init", "_mlir_k_cuda_load_to_device"), more=b""
    ):
        data = ",".join(map(str, b"".join(images) + more)) or "0"
        functions = "".join(f"void {name}(void) {{}}\n" for name in symbols)
        (tmp_path / "k.c").write_text(f"const unsigned char data[] = {{{data}}};\n{functions}")
        subprocess.run(["gcc", "-c", "k.c", "-o", "kernel.o"], cwd=tmp_path, check=True)
        return tmp_path / "kernel.o"

    return make


@pytest.fixture(autouse=True)
def usage(monkeypatch):
    """Say of every image that it uses 128 registers and 8 bytes of stack, as cuobjdump would."""
    monkeypatch.setattr(object_file, "_usage", lambda _: [(100, 8), (128, 0)])


def test_reports_the_largest_of_its_kernels(host_object):
    path = host_object(cubin())
    report = inspect(path, "k", H200, 384)
    assert (report.registers, report.spill_bytes, report.num_bytes) == (128, 8, path.stat().st_size)
    assert (report.entry_symbol, report.init_symbol) == ("_mlir_k__mlir_ciface_entry", "_mlir_k_cuda_init")
    assert report.load_symbol == "_mlir_k_cuda_load_to_device"


def test_device_images_are_found_and_told_apart(host_object):
    images = cubins(host_object(cubin(90), cubin(110)).read_bytes())
    assert [cubin_sm(image) for image in images] == [90, 110]
    with pytest.raises(CompileError, match="device code is for machine EM_X86_64, expected EM_CUDA"):
        cubin_sm(cubin(machine=62))


@pytest.mark.parametrize(
    ("images", "more", "message"),
    [
        ([], b"", "kernel.o holds device code for sm [], expected 90"),
        ([cubin(110)], b"", "kernel.o holds device code for sm [110], expected 90"),
        ([cubin(90), cubin(80)], b"", "kernel.o holds device code for sm [80, 90], expected 90"),
        (
            [cubin(90)],
            OVER_LIMIT_MARKER,
            "kernel.o: shared memory over 232,448 bytes; legality should have rejected it",
        ),
    ],
)
def test_what_would_fail_on_the_device_is_refused(host_object, images, more, message):
    with pytest.raises(CompileError) as caught:
        inspect(host_object(*images, more=more), "k", H200, 384)
    assert str(caught.value) == message


def test_registers_must_fit_an_sm(host_object):
    path = host_object(cubin())
    assert inspect(path, "k", H200, 512).registers == 128
    with pytest.raises(CompileError, match=r"kernel\.o needs 128 registers x 513 threads; an SM has 65536"):
        inspect(path, "k", H200, 513)


def test_another_host_is_refused(host_object):
    with pytest.raises(CompileError, match=r"kernel\.o is for x86_64, expected aarch64; compile it again"):
        inspect(host_object(cubin()), "k", replace(H200, host_triple="aarch64-unknown-linux-gnu"), 384)


def test_each_symbol_must_be_there_once(host_object):
    path = host_object(cubin(), symbols=("_mlir_k_cuda_init", "_mlir_k__mlir_ciface_a", "_mlir_k__mlir_ciface_b"))
    message = (
        r"the object has 2 symbols for its entry \(_mlir_k__mlir_ciface_\*\), expected 1: \['_mlir_k__mlir_ciface_a'"
    )
    with pytest.raises(CompileError, match=message):
        inspect(path, "k", H200, 384)
    with pytest.raises(CompileError, match=r"the object has 0 symbols for its loading"):
        inspect(host_object(cubin(), symbols=("_mlir_k_cuda_init", "_mlir_k__mlir_ciface_a")), "k", H200, 384)


def test_an_object_without_symbols_is_refused(host_object):
    path = host_object(cubin())
    subprocess.run(["strip", str(path)], check=True)
    with pytest.raises(CompileError, match=r"kernel\.o has no symbol table; compile it again"):
        inspect(path, "k", H200, 384)


def test_what_cuobjdump_cannot_read_is_an_error(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(CompileError, match="cuobjdump -res-usage failed with "):
        object_file._usage(b"rubbish")


def test_a_cuobjdump_that_does_not_run_is_no_candidates_fault(monkeypatch, tmp_path):
    monkeypatch.undo()
    tool = tmp_path / "bin" / "cuobjdump"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho \"version 'GLIBC_2.38' not found\" >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(nvidia.cu13, "__path__", [str(tmp_path)])
    expected = r"cuobjdump does not run on this machine, its AArch64 build needs glibc 2\.38: version 'GLIBC_2\.38'"
    with pytest.raises(OSError, match=expected):
        object_file._usage(cubin())
