"""Kernels of another compiler as objects: what is refused, what is written, and how it is launched."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot.compile import compiler
from aot.compile.binary import HEADER, prototype, write_binary
from aot.compile.object_file import cubin_sm, inspect
from aot.core.candidate import KernelKey
from aot.core.errors import CompileError, DeviceError
from aot.core.operands import GemmCall, Tensor, operands
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.emulate.code import DeviceCode
from aot.emulate.host import EmulatedKernels
from aot.families import any_family_of, family_named
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.space.enumeration import fallback
from tests.compiling import compile_kernels
from tests.emulated import KeepingGpu, link, target_of
from tests.example_family import example_family
from tests.unit.accepted import named
from tests.unit.twins import BF16

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
H200, THOR = load_target("h200"), load_target("thor")
NAME = "few_rows_columns32_depth64_stages3"
KERNEL = f"bf16_kk_{NAME}"
PTXAS = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin"
STATIC = """
{version}
.target {target}
.address_size 64
.shared .align 16 .b8 own[300];
.visible .entry stores(.param .u64 p) {{
  .reg .b32 %r<3>;
  mov.u32 %r1, %tid.x;
  st.shared.b32 [own+8], %r1;
  bar.sync 0;
  ld.shared.b32 %r2, [own+12];
  st.shared.b32 [own+16], %r2;
  ret;
}}
.visible .entry nothing() {{ ret; }}
"""


@pytest.fixture(scope="module", autouse=True)
def _example():
    with example_family("triton_kernel", "few_rows"):
        yield


@pytest.fixture(scope="module")
def key():
    return KernelKey(BF16, named(NAME))


@pytest.fixture(scope="module")
def binary(key):
    return family_named("few_rows").entry(key.candidate, BF16, H200)


def assembled(tmp_path, target, assembler="ptxas"):
    """Assemble two kernels, one with static shared memory."""
    version = ".version 9.0" if target == "sm_110a" else ".version 8.7"
    (tmp_path / "a.ptx").write_text(STATIC.format(version=version, target=target))
    subprocess.run([PTXAS / assembler, "-arch", target, tmp_path / "a.ptx", "-o", tmp_path / "a.cubin"], check=True)
    return (tmp_path / "a.cubin").read_bytes()


@pytest.mark.parametrize(
    ("assembler", "target", "sm"),
    [("ptxas", "sm_80", 80), ("ptxas", "sm_90a", 90), ("ptxas-blackwell", "sm_90a", 90),
     ("ptxas-blackwell", "sm_110a", 110)],
)  # fmt: skip
def test_the_architecture_of_an_image_is_read_of_cuda_12_and_13(tmp_path, assembler, target, sm):
    assert cubin_sm(assembled(tmp_path, target, assembler)) == sm


def refusal(binary, key, folder, target=H200):
    with pytest.raises(CompileError) as caught:
        write_binary(binary, key, target, folder / "kernel.o")
    assert [x.name for x in folder.iterdir() if x.suffix == ".o"] == []
    return str(caught.value)


def test_an_image_that_cannot_be_loaded_is_refused(tmp_path, binary, key):
    assert refusal(replace(binary, image=b"P\xedU\xba" + bytes(60)), key, tmp_path) == (
        f"{KERNEL}: its image begins with b'P\\xedU\\xba'; expected a cubin, b'\\x7fELF': nvcc -cubin makes one"
    )
    assert refusal(replace(binary, symbol="kernel"), key, tmp_path) == (
        f"{KERNEL}: its image has no kernel 'kernel'; it has: product"
    )
    assert refusal(binary, key, tmp_path, THOR) == f"{KERNEL}: its image is for sm_90, expected sm_110 (sm_110a)"


def test_what_the_family_counts_is_compared(tmp_path, binary, key):
    counted = 2 * 2 * (16 + 32) * 64
    assert binary.smem_bytes == counted
    assert refusal(replace(binary, num_threads=256), key, tmp_path) == (
        f"{KERNEL} is launched with 256 threads a block; few_rows counts 128; count as many"
    )
    static = replace(binary, image=assembled(tmp_path, "sm_90a"), symbol="stores")
    assert refusal(static, key, tmp_path) == (
        f"{KERNEL} takes {counted:,} bytes of dynamic and 300 of static shared memory; few_rows counts {counted:,}; "
        "count as many at least"
    )
    write_binary(replace(static, smem_bytes=counted - 300), key, H200, tmp_path / "kernel.o")


def test_a_launcher_that_does_not_compile_is_told_with_the_compilers_words(tmp_path, binary, key):
    begins, ends = f"{KERNEL}: its launcher does not compile: ", f"; expected it to define `{prototype(key)}`"
    broken = binary.launcher.replace("lda = a->strides[0]", "lda = a->stride")
    told = refusal(replace(binary, launcher=broken), key, tmp_path)
    assert told == f"{begins}launcher.c:3:20: error: no member named 'stride' in 'struct aot_matrix'{ends}"
    others = binary.launcher.replace("aot_stream_t stream)", "const aot_vector_t *bias, aot_stream_t stream)")
    told = refusal(replace(binary, launcher=others), key, tmp_path)
    assert told == f"{begins}launcher.c:1:16: error: conflicting types for 'launch'{ends}"
    told = refusal(replace(binary, launcher="// nothing"), key, tmp_path)
    assert told.startswith(f"{begins}kernel.c:5:16: error: function 'launch' has internal linkage but is not defined")
    assert told.endswith(ends)


def test_the_launcher_of_the_page_compiles(tmp_path, binary, key):
    page = (ROOT / "docs" / "your-kernel.md").read_text(encoding="utf-8")
    (launcher,) = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    write_binary(replace(binary, launcher=launcher), key, H200, tmp_path / "kernel.o")


def test_a_family_says_what_compiles_its_launchers(tmp_path, monkeypatch, binary, key):
    monkeypatch.setattr(type(family_named("few_rows")), "compilers", ("triton",))
    assert refusal(binary, key, tmp_path) == (
        f"{KERNEL} is a Binary, whose launcher ziglang compiles; expected it among the `compilers` of few_rows, "
        "got triton"
    )


def test_an_operation_on_rows_takes_none_yet(tmp_path, monkeypatch, binary):
    norm = row_operation("bf16_rms_norm")
    key = RowKernelKey(norm, fallback(norm, H200))
    monkeypatch.setattr(type(any_family_of(key.candidate)), "entry", lambda *_: binary)
    with pytest.raises(CompileError, match="is a Binary, which operations on rows do not take yet; expected an Entry"):
        compiler._export(key, H200, tmp_path)


PROTOTYPES = {
    "bf16_kk": "const aot_matrix_t *a, const aot_matrix_t *b, const aot_matrix_t *d, aot_stream_t stream",
    "bf16_kk_batched": "const aot_stack_t *a, const aot_stack_t *b, const aot_stack_t *d, aot_stream_t stream",
    "e4m3_bf16_kk_residual": (
        "const aot_matrix_t *a, const aot_matrix_t *b, const aot_matrix_t *d, const aot_factors_t *scale_a, "
        "const aot_factors_t *scale_b, const aot_vector_t *bias, const aot_matrix_t *residual, aot_stream_t stream"
    ),
    "e4m3_bf16_block_kk_gathered_swiglu": (
        "const aot_matrix_t *a, const aot_gate_stack_t *b, const aot_matrix_t *d, const aot_matrix_t *scale_a, "
        "const aot_stack_t *scale_b, const aot_stack_t *bias, const aot_vector_t *offsets, "
        "const aot_vector_t *index, const aot_addresses_t *b_of_groups, const aot_vector_t *places, aot_stream_t stream"
    ),
}


@pytest.mark.parametrize("operation", PROTOTYPES)
def test_a_launcher_takes_what_the_runtime_passes(operation, key):
    found = prototype(KernelKey(Operation(operation), key.candidate))
    assert found == f"static int32_t launch({PROTOTYPES[operation]})"


def test_the_structs_of_launchers_are_the_runtimes(tmp_path):
    text = (ROOT / "templates" / "src" / "problem.h").read_text(encoding="utf-8")
    theirs = {x[1]: x[0] for x in re.finditer(r"^struct (\w+) \{.*?^\};", text, re.MULTILINE | re.DOTALL)}
    pairs = {"matrix": "Tensor", "stack": "Stack", "gate_stack": "GateStack", "vector": "Vector",
             "factors": "StridedVector", "addresses": "Addresses"}  # fmt: skip
    lines = ["#include <cstddef>", '#include "aot_launch.h"', *(theirs[x] for x in pairs.values())]
    for own, other in pairs.items():
        fields = [x for x in ("data", "shape", "strides") if x in theirs[other]]
        assert re.findall(r"\b(data|shape|strides)\b", theirs[other]) == fields
        lines.append(f"static_assert(sizeof(aot_{own}_t) == sizeof({other}));")
        lines += [f"static_assert(offsetof(aot_{own}_t, {x}) == offsetof({other}, {x}));" for x in fields]
        lines += [f"static_assert(sizeof(aot_{own}_t::{x}) == sizeof({other}::{x}));" for x in fields]
    (tmp_path / "layout.cc").write_text("\n".join(lines))
    words = ["g++", "-std=c++17", "-Werror", "-fsyntax-only", f"-I{HEADER.parent}", str(tmp_path / "layout.cc")]
    subprocess.run(words, check=True)


@pytest.mark.parametrize("target", [H200, THOR], ids=lambda x: x.name)
def test_equal_kernels_are_equal_objects(tmp_path, target, key):
    paths = [tmp_path / name / "kernel.o" for name in ("here", "and_there")]
    for path in paths:
        path.parent.mkdir()
        write_binary(family_named("few_rows").entry(key.candidate, BF16, target), key, target, path)
    first, second = (x.read_bytes() for x in paths)
    assert first == second
    assert str(tmp_path).encode() not in first
    report = inspect(paths[0], key.name, target, 128)
    assert report.entry_symbol == f"_mlir_{KERNEL}__mlir_ciface_{KERNEL}"


def test_the_store_tells_apart_what_decides_an_object(tmp_path, monkeypatch, key):
    store = compiler.ArtifactStore(tmp_path)
    found = [store.directory(key, H200)]
    monkeypatch.setattr(compiler, "toolchain_versions", dict)
    assert store.directory(key, H200) == found[0]
    monkeypatch.setattr(compiler, "versions_of", lambda names: dict.fromkeys(names, "0"))
    found.append(store.directory(key, H200))
    monkeypatch.setattr(compiler, "launcher_sha256", lambda: "another")
    found.append(store.directory(key, H200))
    assert len(set(found)) == 3


def launched(artifact, folder, m, n, k):
    """Launch a kernel through the library's own host code; return the launch, and the operands by their names."""
    target = target_of("h200")
    kernels, gpu = link([artifact], [], target, folder), KeepingGpu()
    found = EmulatedKernels(kernels.library, [DeviceCode.of(artifact)], gpu, target)
    problem = Problem(BF16, m, n, k)
    tensors = {x: Tensor(gpu.alloc(2 * y.num_elements), y) for x, y in operands(problem).items()}
    found.launch(0, found.bind(GemmCall(problem, tensors)), 0, 0, gpu.stream)
    (asked,) = gpu.asked
    return asked.launch, {x.value: y for x, y in tensors.items()}


@pytest.fixture(scope="module")
def artifact(key):
    return compile_kernels([key], target_of("h200"))[0]


def test_a_launch_has_the_grid_and_the_parameters_that_the_launcher_says(tmp_path, artifact):
    launch, tensors = launched(artifact, tmp_path, 37, 136, 72)
    assert (launch.kernel, launch.grid, launch.block) == ("product", (3 * 5, 1, 1), (128, 1, 1))
    assert (launch.smem_bytes, launch.attributes) == (12288, {})
    *parameters, first, second = launch.parameters
    a, b, d = (tensors[x] for x in "abd")
    assert struct.unpack("<3Q3i3q", b"".join(parameters)) == (
        *(x.address for x in (a, b, d)), 37, 136, 72, *(x.matrix.row_stride for x in (a, b, d)),
    )  # fmt: skip
    assert first == second == bytes(8)


def test_a_launcher_may_ask_for_clusters_and_an_early_start(tmp_path, binary, artifact, key):
    how = ".cluster = {5, 1, 1}, .block = {32, 2, 2}, .programmatic = 1, .stream"
    launcher = binary.launcher.replace(".stream", how)
    write_binary(replace(binary, launcher=launcher), key, target_of("h200"), tmp_path / "kernel.o")
    (tmp_path / "kernel.ptx").write_text(binary.ptx)
    launch, _ = launched(replace(artifact, path=tmp_path / "kernel.o"), tmp_path, 37, 136, 72)
    assert (launch.grid, launch.cluster, launch.block) == ((15, 1, 1), (5, 1, 1), (32, 2, 2))
    assert launch.is_programmatic


def test_a_block_of_other_threads_is_not_launched(tmp_path, binary, artifact, key):
    launcher = binary.launcher.replace(".stream", ".block = {32, 2, 1}, .stream")
    write_binary(replace(binary, launcher=launcher), key, target_of("h200"), tmp_path / "kernel.o")
    (tmp_path / "kernel.ptx").write_text(binary.ptx)
    with pytest.raises(DeviceError, match="invalid argument"):
        launched(replace(artifact, path=tmp_path / "kernel.o"), tmp_path, 37, 136, 72)
