"""Objects and headers that somebody else exported from CuTe DSL become kernels; what is not for them is refused."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from aot.compile.exported import Exported, Header, write_exported
from aot.compile.object_file import inspect
from aot.core.candidate import KernelKey, Rejected
from aot.core.errors import CompileError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import family_named
from tests.emulated import CACHE
from tests.example_family import EXAMPLES, example_family
from tests.unit.invoked import succeed
from tests.unit.twins import BF16

H200 = load_target("h200")

HEADER = """
typedef struct {
    void *data;
    int32_t dynamic_shapes[3];
    int64_t dynamic_strides[2];
} theirs_Tensor_x_t;
typedef struct {
    void *data;
    int64_t dynamic_shapes[2];
    int32_t dynamic_strides[1];
} theirs_Tensor_w_t;
typedef struct {
    void *data;
} theirs_Tensor_y_t;
void _mlir_theirs__mlir_ciface_cutlass_call_x(void **args, int32_t num_args);
static inline int32_t cute_dsl_theirs_wrapper(theirs_Kernel_Module_t *module, PARAMETERS) {
"""
PARAMETERS = "theirs_Tensor_x_t *x, theirs_Tensor_w_t *w, theirs_Tensor_y_t *y, cudaStream_t stream"
LAUNCHER = """\
static int32_t launch(const aot_matrix_t *a, const aot_matrix_t *b, const aot_matrix_t *d, aot_stream_t stream) {
  if (b->strides[0] > INT32_MAX) return 1;  // cudaErrorInvalidValue
  struct { void *data; int32_t shapes[3]; int64_t strides[2]; } of_a = \
{a->data, {a->shape[0], a->shape[1], 1}, {a->strides[0], a->shape[0] * a->strides[0]}};
  struct { void *data; int64_t shapes[2]; int32_t strides[1]; } of_b = \
{b->data, {b->shape[0], b->shape[1]}, {b->strides[0]}};
  struct { void *data;  } of_d = {d->data};
  int32_t status = 0;
  void *arguments[] = {&of_a, &of_b, &of_d, &stream, &status};
  _mlir_theirs__mlir_ciface_cutlass_call_x(arguments, 5);
  return status;
}
"""
EXPORT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cutlass
from cutlass import cute
from row_dot import RowDotKnobs, _entry
m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
def matrix(*shape):
    strides = (cute.sym_int64(divisibility=8), 1)
    return cute.runtime.make_fake_tensor(cutlass.BFloat16, shape, stride=strides, assumed_align=16)
arguments = matrix(m, k), matrix(n, k), matrix(m, n), cute.runtime.make_fake_stream()
folder, options = sys.argv[2:]
compiled = cute.compile(_entry(RowDotKnobs(4, 2)), *arguments, options=options)
compiled.export_to_c(file_path=folder, file_name="theirs", function_prefix="theirs")
(ptx,) = Path(folder).glob("*.ptx")
ptx.rename(Path(folder, "theirs.ptx"))
"""
KERNELS = """
[[kernel]]
object = "theirs.o"
header = "theirs.h"
ptx = "theirs.ptx"
target = "h200"
type = "bf16"
threads = 128
smem_bytes = 0
tile = [1, 8]
"""


def test_a_launcher_fills_the_descriptors_of_the_header():
    found = Header.parse(HEADER.replace("PARAMETERS", PARAMETERS))
    assert (found.prefix, found.entry) == ("theirs", "_mlir_theirs__mlir_ciface_cutlass_call_x")
    assert found.launcher() == LAUNCHER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int main() {}", "x.h has no wrapper of an exported function; expected what `export_to_c` writes"),
        (
            HEADER.replace("PARAMETERS", PARAMETERS.partition(", cuda")[0]),
            "expected the tensors A, B and D, then a stream",
        ),
        (
            HEADER.replace("PARAMETERS", f"int32_t count, {PARAMETERS}"),
            r"theirs takes \(int32_t count, theirs_Tensor_x_t",
        ),
        (
            HEADER.replace("PARAMETERS", PARAMETERS).replace("shapes[3]", "shapes[4]"),
            "tensor x has 4 extents and 2 strides that are dynamic; expected at most 3 and 2",
        ),
    ],
)
def test_a_header_of_another_function_is_refused(text, message):
    with pytest.raises(CompileError, match=message):
        Header.parse(text, "x.h")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Export a kernel as somebody else does: in a process and by a prefix of their own."""
    folder = tmp_path_factory.mktemp("theirs")
    host = f"llvm -mtriple={H200.host_triple} -mcpu={H200.host_cpu}"
    options = f"--gpu-arch {H200.arch} --host-target '{host}' --keep-ptx --dump-dir {folder}"
    command = [sys.executable, "-c", EXPORT, str(EXAMPLES / "family"), str(folder), options]
    subprocess.run(command, check=True, capture_output=True, env={"CUTE_DSL_ARCH": H200.arch, "PATH": "/usr/bin:/bin"})
    (folder / "kernels.toml").write_text(KERNELS)
    return folder


@pytest.fixture
def key(folder, monkeypatch):
    monkeypatch.setenv("EXPORTED_KERNELS", str(folder))
    with example_family("exported_kernel", "exported_gemm"):
        (candidate,) = family_named("exported_gemm").candidates(BF16, H200)
        yield KernelKey(BF16, candidate)


@pytest.mark.slow
def test_an_exported_object_is_a_kernel_of_the_store(key, folder, tmp_path):
    family = family_named("exported_gemm")
    paths = [tmp_path / name / "kernel.o" for name in ("here", "and_there")]
    for path in paths:
        path.parent.mkdir()
        write_exported(family.entry(key.candidate, BF16, H200), key, H200, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert inspect(paths[0], key.name, H200, 128).entry_symbol == f"_mlir_{key.name}__mlir_ciface_{key.name}"
    for operation, target in ((Operation.FP16_KK, H200), (BF16, load_target("thor"))):
        assert isinstance(family.check(key.candidate, operation, target), Rejected)


@pytest.mark.walk
@pytest.mark.slow
def test_the_interpreter_finds_it_right(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "build" / "emulate").symlink_to(CACHE)
    words = ["--fresh", "--target", "h200", "--operations", "bf16_kk", "--legal", "--kernels", key.candidate.name]
    assert "1 of 1 kernels are right" in succeed("emulate", *words, "--problem", "3,21,72")


@pytest.mark.slow
def test_an_object_that_is_not_the_headers_or_asks_for_more_is_refused(key, folder, tmp_path):
    content, header = (folder / "theirs.o").read_bytes(), (folder / "theirs.h").read_text()
    other = Exported.of(content, header.replace("ciface_cutlass", "ciface_other"), 128)
    with pytest.raises(CompileError, match="its object does not define _mlir_theirs__mlir_ciface_other"):
        write_exported(other, key, H200, tmp_path / "kernel.o")
    unknown = Exported.of(content.replace(b"_cudaLibraryGetKernel", b"_cudaLibraryNewKernel"), header, 128)
    with pytest.raises(CompileError, match="asks for _cudaLibraryNewKernel, which a wheel's library has not"):
        write_exported(unknown, key, H200, tmp_path / "kernel.o")
    with pytest.raises(CompileError, match="is launched with 64 threads a block; exported_gemm counts 128"):
        write_exported(Exported.of(content, header, 64), key, H200, tmp_path / "kernel.o")


@pytest.mark.slow
def test_a_kernel_whose_files_are_gone_says_so(key, monkeypatch, tmp_path):
    monkeypatch.delenv("EXPORTED_KERNELS")
    with pytest.raises(
        CompileError, match="its object is not in any folder; set EXPORTED_KERNELS to the folder that has it"
    ):
        family_named("exported_gemm").entry(key.candidate, BF16, H200)
    assert isinstance(family_named("exported_gemm").check(key.candidate, BF16, H200), Rejected)
    (tmp_path / "kernels.toml").write_text(KERNELS)
    monkeypatch.setenv("EXPORTED_KERNELS", str(tmp_path))
    with pytest.raises(CompileError, match=r"a kernel lacks theirs\.o, theirs\.h, theirs\.ptx; expected"):
        import_module("exported_gemm").kernels()
