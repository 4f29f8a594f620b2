"""What is taken of workers that compile: artifacts that are what their hashes say, and nothing else."""

import signal
from dataclasses import replace

import pytest

from aot.compile.artifact import CompileFailure
from aot.compile.compiler import SCRATCH, ArtifactStore, Compiled
from aot.compile.process_pool import Died
from aot.compile.transport import packed, unpack
from aot.core.candidate import KernelKey
from aot.fleet.announcement import of_compiler
from aot.fleet.compiling import CompileJob
from aot.fleet.engine import Done, FleetWorker, Refused
from aot.fleet.seats import CompileResult, CompilerSeat, CompileTask
from tests.compiling import STORE, compile_kernels
from tests.objects import BF16
from tests.simulated.machines import H200
from tests.unit.accepted import named

TARGET = H200.target
KEY = KernelKey(BF16, named(H200.sound[0]))
WORKER = FleetWorker("tcp://w", "w", 1, of_compiler())

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files():
    compile_kernels([KEY], TARGET)
    return packed(ArtifactStore(STORE).directory(KEY, TARGET))


@pytest.fixture
def job(tmp_path):
    return CompileJob(TARGET, tmp_path / "store", tmp_path)


def test_an_artifact_arrives_once_and_whole(job, files, tmp_path):
    store = ArtifactStore(job.root)
    assert set(files) == {"kernel.o", "kernel.ptx", "result.json"}
    assert job.judge(KEY, WORKER, CompileResult(Compiled(), files)) == Done(Compiled())
    assert store.get(KEY, TARGET).kernel == ArtifactStore(STORE).get(KEY, TARGET).kernel
    directory = store.directory(KEY, TARGET)
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}
    assert job.judge(KEY, WORKER, CompileResult(Compiled(), files)) == Done(Compiled())
    assert {path.name: path.stat().st_ino for path in directory.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("kernel.o", lambda x: x[:-1] + bytes([x[-1] ^ 1]), "its files are not those that its result names"),
        ("kernel.ptx", lambda x: x + b" ", "its files are not those that its result names"),
        ("result.json", lambda x: b"\x80" + x, "it cannot be read"),
        ("kernel.o", None, "it cannot be read"),
        ("../../evil", lambda _: b"x", "it has a file '../../evil', expected kernel.o, kernel.ptx, result.json"),
    ],
)
def test_another_artifact_is_refused_and_its_worker_barred(job, files, name, change, reason):
    sent = {key: value for key, value in files.items() if key != name}
    if change is not None:
        sent[name] = change(files.get(name, b""))
    found = job.judge(KEY, WORKER, CompileResult(Compiled(), sent))
    assert isinstance(found, Refused)
    assert found.is_barred
    assert f"sent an artifact of {KEY.name} that is none: {reason}" in found.reason
    assert ArtifactStore(job.root).get(KEY, TARGET) is None


def test_an_artifact_of_another_kernel_is_none(job, files, tmp_path):
    other = KernelKey(BF16, named(H200.sound[1]))
    assert unpack(files, other, TARGET, job.root, tmp_path).startswith("its files are not those")


def test_what_is_a_kernels_own_and_what_its_machines(job):
    failure = Compiled(CompileFailure(KEY.name, "no"))
    crashed, killed = Died(-signal.SIGSEGV), Died(-signal.SIGKILL)
    assert job.judge(KEY, WORKER, CompileResult(failure, {})) == Done(failure)
    assert job.judge(KEY, WORKER, CompileResult(crashed, {})) == Done(crashed)
    lost = f"lost its compiler of {KEY.name} (exit code -9)"
    assert job.judge(KEY, WORKER, CompileResult(killed, {})) == Refused(lost)
    short = job.judge(KEY, WORKER, CompileResult(Compiled(machine="no disk"), {}))
    assert short == Refused("cannot compile: no disk", is_barred=True)
    assert job.lost(KEY, "w is gone").machine == f"{KEY.name}: given up by the fleet: w is gone"


def test_a_worker_compiles_only_what_has_the_same_place_in_its_store(job, files, tmp_path):
    root = tmp_path / "worker" / "artifacts"
    entry = ArtifactStore(root).directory(KEY, TARGET).relative_to(root).as_posix()
    task = CompileTask(KEY, TARGET, entry, "1")
    assert unpack(files, KEY, TARGET, root, tmp_path) == ""
    seat = CompilerSeat(tmp_path / "worker")
    try:
        assert seat.compile(task, lambda _: True) == CompileResult(Compiled(), files)
        other = seat.compile(replace(task, entry="ab/cd"), lambda _: True)
    finally:
        seat.close()
    assert other.unlike == "has other sources of this family, or another toolchain"
    assert job.judge(KEY, WORKER, other) == Refused(other.unlike, is_barred=True)
    assert list(root.glob(f"{SCRATCH}*")) == []
