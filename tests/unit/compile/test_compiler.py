"""Real compilations, without a GPU: kernels of each family, two of them into a new store, and what may go wrong."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from aot.compile import compiler as compile_module
from aot.compile.artifact import CompileFailure
from aot.compile.compiler import SCRATCH, ArtifactStore, Processes, compile_kernels, compile_one
from aot.compile.kinds import RESULT_NAME
from aot.compile.object_file import cubin_sm, cubins, inspect
from aot.compile.sources import FAMILIES, family_sources, sources_changed
from aot.core import scratch
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.errors import CompileError, ResourceError
from aot.core.target import load_target
from aot.families import family_of
from tests import compiling
from tests.compiling import EVERY
from tests.unit.accepted import named
from tests.unit.twins import BF16

pytestmark = pytest.mark.slow

NAMES = {
    "h200": [
        "simt_64x64_c1x1_direct",
        "sm90_quack_64x16_c1x1_pingpong_swap",
        "sm90_partial_tile_64x16_c2x1_pingpong",
        "sm90_prefetch_b_64x16_c1x1_pingpong_swap",
    ],
    "thor": [
        "sm100_persistent_64x32_c1x1_static",
        "sm100_quack_64x32_c1x1_clc_swap",
        "sm100_tgv_64x8_c1x1_st4_direct_swap",
    ],
}
KEYS = {target: [KernelKey(BF16, named(name)) for name in names] for target, names in NAMES.items()}
H200 = load_target("h200")
FALLBACK, SMALL = NEW = KEYS["h200"][:2]
"""What is compiled into a new store; the others come from the one that tests share."""
TARGETS = {"h200": H200, "thor": load_target("thor")}
NO_HOST = replace(H200, host_triple="no-such-triple")


@pytest.fixture(scope="session")
def new_store(tmp_path_factory):
    """Compile into a new store; gives its folder and the artifacts."""
    root = tmp_path_factory.mktemp("artifacts")
    return root, compile_kernels(NEW, H200, root, compilers=Processes(1), progress=False)


@pytest.fixture(scope="session")
def artifacts(new_store):
    """Give the artifacts of both shipped targets, by target and candidate name."""
    found = {("h200", x.kernel.candidate.name): x for x in new_store[1]}
    for target, device in TARGETS.items():
        others = [x for x in KEYS[target] if (target, x.candidate.name) not in found]
        found |= {(target, x.kernel.candidate.name): x for x in compiling.compile_kernels(others, device)}
    return found


@pytest.fixture
def store(new_store, tmp_path):
    """Give a copy of the new store, to be spoilt."""
    return ArtifactStore(shutil.copytree(new_store[0], tmp_path / "store"))


@pytest.mark.parametrize(("target", "name"), [(target, name) for target, names in NAMES.items() for name in names])
def test_objects_of_every_family(artifacts, target, name):
    artifact, device = artifacts[target, name], TARGETS[target]
    kernel, content = artifact.kernel, artifact.path.read_bytes()
    assert kernel.name == f"bf16_kk_{name}"
    assert (kernel.object_sha256, kernel.object_bytes) == (sha256(content).hexdigest(), len(content))
    assert kernel.entry_symbol.startswith(f"_mlir_{kernel.name}__mlir_ciface_cutlass_")
    assert kernel.init_symbol == f"_mlir_{kernel.name}_cuda_init"
    assert kernel.load_symbol == f"_mlir_{kernel.name}_cuda_load_to_device"
    assert 0 < kernel.registers <= 65536 // kernel.num_threads
    assert kernel.spill_bytes == 0
    assert [cubin_sm(image) for image in cubins(content)] == [{"h200": 90, "thor": 110}[target]]
    report = inspect(artifact.path, kernel.name, device, kernel.num_threads)
    assert (report.sha256, report.registers) == (kernel.object_sha256, kernel.registers)


@pytest.mark.parametrize(("target", "name"), [(target, name) for target, names in NAMES.items() for name in names])
def test_ptx_is_kept_beside_its_object(artifacts, target, name):
    artifact = artifacts[target, name]
    content = artifact.ptx_path.read_bytes()
    assert artifact.ptx_path == artifact.path.with_name("kernel.ptx")
    assert artifact.kernel.ptx_sha256 == sha256(content).hexdigest()
    assert f".target {TARGETS[target].arch}".encode() in content
    assert len(re.findall(rb"^\.visible \.entry ", content, re.MULTILINE)) >= 1
    assert sorted(x.name for x in artifact.path.parent.iterdir()) == [
        "kernel.h", "kernel.o", "kernel.ptx", "result.json",
    ]  # fmt: skip


def _plain_object(key, target, folder):
    """Compile without keeping PTX, and return the object's SHA-256."""
    from cutlass import cute

    entry = family_of(key.candidate).entry(key.candidate, key.operation, target)
    options = f"--gpu-arch {target.arch} --host-target 'llvm -mtriple={target.host_triple} -mcpu={target.host_cpu}'"
    compiled = cute.compile(entry.function, *entry.arguments, options=options)
    compiled.export_to_c(file_path=str(folder), file_name="kernel", function_prefix=key.name)
    return sha256((folder / "kernel.o").read_bytes()).hexdigest()


@pytest.mark.walk
@pytest.mark.parametrize("target", list(NAMES) if EVERY else ["h200"])
def test_keeping_ptx_changes_no_byte_of_an_object(artifacts, tmp_path, target):
    device, keys = TARGETS[target], KEYS[target][: None if EVERY else 1]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, compile_module.start_compiler, (device.arch, tmp_path)) as compiler:
        plain = [compiler.submit(_plain_object, key, device, tmp_path).result() for key in keys]
    assert plain == [artifacts[target, key.candidate.name].kernel.object_sha256 for key in keys]


def test_ptx_does_not_depend_on_the_host(artifacts):
    other_host = replace(TARGETS["thor"], host_triple=H200.host_triple, host_cpu=H200.host_cpu)
    for other in compiling.compile_kernels(KEYS["thor"][: None if EVERY else 1], other_host):
        own = artifacts["thor", other.kernel.candidate.name]
        assert other.kernel.object_sha256 != own.kernel.object_sha256
        assert other.ptx_path.read_bytes() == own.ptx_path.read_bytes()


def _spoil(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, _spoil])
def test_an_object_without_its_ptx_counts_as_none(store, damage):
    damage(store.get(SMALL, H200).ptx_path)
    assert store.get(SMALL, H200) is None


def test_an_object_of_which_no_ptx_is_named_counts_as_none(store):
    path = store.directory(SMALL, H200) / RESULT_NAME
    result = json.loads(path.read_text())
    del result["kernel"]["ptx_sha256"]
    path.write_text(json.dumps(result))
    assert store.get(SMALL, H200) is None


@pytest.mark.parametrize(
    ("name", "num_strides", "tmem_columns", "num_threads"),
    [
        (("h200", NAMES["h200"][0]), 2, 0, 256),
        (("h200", NAMES["h200"][1]), 1, 0, 384),
        (("h200", NAMES["h200"][2]), 1, 0, 384),
        (("h200", NAMES["h200"][3]), 1, 0, 384),
        (("thor", NAMES["thor"][0]), 1, 32, 192),
        (("thor", NAMES["thor"][1]), 1, 32, 256),
        (("thor", NAMES["thor"][2]), 1, 256, 256),
    ],
)
def test_artifacts_say_what_a_launch_needs(artifacts, name, num_strides, tmem_columns, num_threads):
    kernel = artifacts[name].kernel
    assert (kernel.num_strides, kernel.tmem_columns, kernel.num_threads) == (num_strides, tmem_columns, num_threads)


def test_what_is_there_is_not_compiled_again(store, monkeypatch):
    monkeypatch.setattr(compile_module, "_take", lambda *_, **__: pytest.fail("compiled again"))
    made = compile_kernels(NEW[::-1], H200, store.root)
    assert [artifact.kernel.key for artifact in made] == NEW[::-1]


@pytest.mark.parametrize(("damaged", "whole"), [(0, 1), (1, 0)] if EVERY else [(0, 1)])
def test_a_damaged_object_is_compiled_again_to_the_same_bytes(artifacts, store, damaged, whole):
    key = NEW[damaged]
    good = artifacts["h200", key.candidate.name].kernel
    spoilt = store.get(key, H200)
    spoilt.path.write_bytes(spoilt.path.read_bytes()[:-1])
    assert store.get(key, H200) is None
    other = store.get(NEW[whole], H200).path
    before = other.stat().st_mtime_ns
    made = compile_kernels(NEW, H200, store.root, progress=False)
    assert made[damaged].kernel == good
    assert sha256(made[damaged].path.read_bytes()).hexdigest() == good.object_sha256
    assert other.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b'{"failure"', b"{}", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"[" * 5000, b"9" * 5000),
        *(b'{"failure": "x"}', b'{"failure": 3, "seconds": 1}', b'{"failure": "x", "seconds": "y"}'),
        *(b'{"kernel": {}, "seconds": 1}', b'{"kernel": null, "seconds": 1}', b'{"kernel": [], "seconds": null}'),
    ],
)
def test_a_damaged_result_counts_as_none(store, damage):
    path = store.directory(SMALL, H200) / RESULT_NAME
    path.write_bytes(damage)
    assert store.get(SMALL, H200) is None


def test_a_result_that_is_a_folder_counts_as_none(store):
    path = store.directory(SMALL, H200) / RESULT_NAME
    path.unlink()
    path.mkdir()
    assert store.get(SMALL, H200) is None


def test_another_kernels_result_counts_as_none(store):
    place = store.directory(SMALL, H200)
    shutil.rmtree(place)
    shutil.copytree(store.directory(FALLBACK, H200), place)
    assert store.get(SMALL, H200) is None


def test_what_a_killed_run_left_is_swept(tmp_path, monkeypatch):
    store = ArtifactStore(tmp_path)
    old, used = store.root / f"{SCRATCH}old", store.root / f"{SCRATCH}used"
    for folder in (old, used):
        folder.mkdir()
        (folder / "kernel.o").write_bytes(b"half")
    monkeypatch.setattr(scratch, "MIN_AGE_S", 0.0)
    descriptor = scratch._lock(used)
    monkeypatch.setattr(compile_module, "start_compiler", partial(_kill_self, signal.SIGSEGV))
    compile_kernels([SMALL], H200, store.root, progress=False)
    os.close(descriptor)
    assert [x.name for x in store.root.iterdir() if x.name.startswith(".")] == [used.name]


def test_what_the_compiler_refuses_is_a_result_with_its_reason(tmp_path):
    (failure,) = compile_kernels([FALLBACK], NO_HOST, tmp_path, compilers=Processes(1), progress=False)
    assert failure.name == FALLBACK.name
    assert failure.reason.startswith("DSLRuntimeError: ")
    assert "no-such-triple" in failure.reason
    assert "\x1b" not in failure.reason
    assert ArtifactStore(tmp_path).get(FALLBACK, NO_HOST) == failure


def test_what_the_second_gate_refuses_is_a_result_with_its_reason(artifacts, tmp_path, monkeypatch):
    foreign = artifacts["h200", NAMES["h200"][0]]
    monkeypatch.setattr(compile_module, "_export", lambda *_: foreign.path)
    compile_one(SMALL, H200, tmp_path, tmp_path)
    prefix = f"_mlir_{SMALL.name}__mlir_ciface_"
    reason = f"CompileError: the object has 0 symbols for its entry ({prefix}*), expected 1: []"
    assert compile_kernels([SMALL], H200, tmp_path) == [CompileFailure(SMALL.name, reason)]


def test_a_compiler_that_dies_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_module, "start_compiler", sys.exit)
    message = f"compiling stopped: {SMALL.name}: the compiler ended with exit code 1; is memory short?"
    with pytest.raises(ResourceError, match=re.escape(message)):
        compile_kernels([SMALL], H200, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "is_own"), [(signal.SIGKILL, False), (signal.SIGBUS, False), (signal.SIGSEGV, True)]
)
def test_a_killed_compiler_stops_the_command_and_a_crashed_one_fails_its_kernel(tmp_path, monkeypatch, number, is_own):
    monkeypatch.setattr(compile_module, "start_compiler", partial(_kill_self, number))
    if is_own:
        failure = CompileFailure(SMALL.name, f"the compiler crashed with signal {number}", 0.0)
        assert compile_kernels([SMALL], H200, tmp_path, progress=False) == [failure]
    else:
        with pytest.raises(ResourceError, match=f"the compiler was killed by signal {number}; is memory short"):
            compile_kernels([SMALL], H200, tmp_path, progress=False)
    # Either way the next run tries again.
    assert ArtifactStore(tmp_path).get(SMALL, H200) is None
    assert list(tmp_path.iterdir()) == []


def _kill_self(number, *_):
    os.kill(os.getpid(), number)


class DSLBaseError(Exception):
    """As the compiler names it."""

    __module__ = "cutlass.base_dsl.common"


def raised(error, cause=None):
    def fail(*_):
        raise error from cause

    return fail


DISK = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (raised(DSLBaseError("unable to infer a layout")), "stored"),
        (raised(CompileError("the object has 0 symbols")), "stored"),
        (raised(ValueError("what is this")), "not stored"),
        (raised(DSLBaseError("cannot write"), DISK), "machine"),
        (raised(DSLBaseError("LLVM ERROR: IO failure on output stream: No space left on device")), "machine"),
        (raised(CompileError("cuobjdump failed: Cannot allocate memory")), "machine"),
        (raised(DSLBaseError("x"), MemoryError()), "machine"),
        (raised(ExceptionGroup("x", [ValueError(), DISK])), "machine"),
        (raised(FileNotFoundError(errno.ENOENT, "No such file", "ptxas")), "machine"),
        (raised(ImportError("No module named 'quack'")), "missing"),
        (raised(DSLBaseError("x"), ModuleNotFoundError("No module named 'cutlass'")), "missing"),
    ],
)
def test_only_a_failure_that_is_the_kernels_own_is_stored(tmp_path, monkeypatch, fail, kind):
    monkeypatch.setattr(compile_module, "_export", fail)
    (tmp_path / "work").mkdir()
    outcome = compile_one(SMALL, H200, tmp_path / "store", tmp_path / "work")
    stored = ArtifactStore(tmp_path / "store").get(SMALL, H200)
    found = "machine" if outcome.machine else "missing" if outcome.missing else "stored" if stored else "not stored"
    assert found == kind
    assert (outcome.failure is not None) == (kind in ("stored", "not stored"))
    assert (stored == outcome.failure) == (kind in ("stored", "machine", "missing"))
    assert (tmp_path / "store").exists() == (kind == "stored")


def test_a_failure_on_a_full_disk_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_module, "_export", raised(CompileError("the object is cut")))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=compile_module.MIN_FREE_BYTES - 1))
    outcome = compile_one(SMALL, H200, tmp_path / "store", tmp_path)
    assert outcome.machine == f"{SMALL.name}: CompileError: the object is cut"
    assert not (tmp_path / "store").exists()


def test_nothing_is_kept_of_a_kernel_whose_sources_changed_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_module, "_export", raised(CompileError("the module has two halves")))
    monkeypatch.setattr(compile_module, "sources_changed", lambda family, *_: family == SMALL.candidate.family)
    monkeypatch.setattr(compile_module.Pool, "run", run_here)
    with pytest.raises(CompileError) as caught:
        compile_kernels([SMALL], H200, tmp_path, progress=False)
    assert str(caught.value) == (
        f"compiling stopped: the sources of {SMALL.candidate.family} changed while {SMALL.name} was compiled; "
        "run again: what was compiled before is kept"
    )
    assert ArtifactStore(tmp_path).get(SMALL, H200) is None


def test_sources_are_read_again_to_see_a_change(tmp_path, monkeypatch):
    for path in FAMILIES.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = family_sources(SMALL.candidate.family)
    monkeypatch.setattr(family_sources.__wrapped__, "__defaults__", (tmp_path,))
    assert not sources_changed(SMALL.candidate.family)
    with (tmp_path / f"{SMALL.candidate.family}.py").open("a") as file:
        file.write("# changed\n")
    assert sources_changed(SMALL.candidate.family)
    assert family_sources(SMALL.candidate.family) == before


def test_what_the_machine_lacks_stops_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(
        compile_module, "compile_one", lambda *_, **__: compile_module.Compiled(machine="k: No space left on device")
    )
    monkeypatch.setattr(compile_module.Pool, "run", run_here)
    with pytest.raises(ResourceError) as caught:
        compile_kernels([SMALL], H200, tmp_path, progress=False)
    assert str(caught.value) == (
        "compiling stopped: k: No space left on device; free memory or disk and run again: what is done is kept"
    )


def run_here(pool, tasks):
    """Do a pool's tasks in this process."""
    yield from ((task, pool.do(task)) for task in tasks)


def test_an_illegal_kernel_is_not_tried(tmp_path):
    key = KernelKey(BF16, gemm_candidate("sm90_quack", 128, 256, schedule="pingpong"))
    message = (
        "bf16_kk_sm90_quack_128x256_c1x1_pingpong is not legal on h200: pingpong takes tile_n in steps of 16 up to 208"
    )
    with pytest.raises(CompileError, match=message):
        compile_kernels([SMALL, key], H200, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change", [{"num_sms": 66}, {"host_cpu": "x86-64-v3"}, {"arch": "sm_100a"}, {"clusters": ((1, 1),)}]
)
def test_another_target_has_another_place(tmp_path, change):
    store = ArtifactStore(tmp_path)
    assert store.directory(SMALL, H200) == store.directory(SMALL, load_target("h200"))
    assert store.directory(SMALL, replace(H200, **change)) != store.directory(SMALL, H200)


def test_what_a_device_is_known_by_is_no_part_of_an_object(tmp_path):
    store = ArtifactStore(tmp_path)
    other = replace(
        H200,
        device_names=("another",),
        nominal_bandwidth_bytes_per_s=1.0,
        default_operations=(),
        sources=dict.fromkeys(H200.sources, ""),
    )
    assert store.directory(SMALL, other) == store.directory(SMALL, H200)


def test_another_toolchain_or_source_has_another_place(tmp_path, monkeypatch):
    store = ArtifactStore(tmp_path)
    before = store.directory(SMALL, H200)
    monkeypatch.setattr(compile_module, "family_sources", lambda family: f"changed {family}")
    changed = store.directory(SMALL, H200)
    monkeypatch.setattr(compile_module, "toolchain_versions", dict)
    assert len({before, changed, store.directory(SMALL, H200)}) == 3


@pytest.mark.parametrize(
    ("changed", "is_other"), [("sm90_quack", True), ("_quack", True), ("__init__", True), ("sm100_tgv", False)]
)
def test_a_kernel_is_made_again_when_what_it_is_made_of_changes(tmp_path, changed, is_other):
    shutil.copytree(FAMILIES, tmp_path / "families")
    before = family_sources("sm90_quack", tmp_path / "families")
    assert before == family_sources("sm90_quack")
    shutil.copytree(tmp_path / "families", tmp_path / "later")
    with (tmp_path / "later" / f"{changed}.py").open("a") as file:
        file.write("# more\n")
    assert (family_sources("sm90_quack", tmp_path / "later") != before) is is_other


WAYS_TO_IMPORT = """\
import aot.families._plain
from aot.families import _named
from aot.families._thing import anything

def entry():
    from aot.families._within import anything
    return "\\nfrom aot.families._quoted import anything"
"""


@pytest.mark.parametrize(
    ("changed", "is_other"),
    [("_plain", True), ("_named", True), ("_thing", True), ("_within", True), ("_deep", True), ("_quoted", False)],
)
def test_the_hash_follows_every_way_to_import(tmp_path, changed, is_other):
    sources = dict.fromkeys(("__init__", "_named", "_thing", "_within", "_deep", "_quoted"), "")
    sources |= {"family": WAYS_TO_IMPORT, "_plain": "from aot.families import _deep\n"}
    for folder, more in (("before", ""), ("after", "# more\n")):
        (tmp_path / folder).mkdir()
        for name, source in sources.items():
            (tmp_path / folder / f"{name}.py").write_text(source + more * (name == changed))
    before, after = (family_sources("family", tmp_path / folder) for folder in ("before", "after"))
    assert (before != after) is is_other


def test_a_place_without_a_result_is_empty(tmp_path):
    assert ArtifactStore(tmp_path / "absent").get(SMALL, H200) is None
