"""The miss log: what it counts, that that it is whole whatever happens, and that off means off."""

from __future__ import annotations

import _ctypes
import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.shape_set import load_shape_set
from tests.runtime import host
from tests.runtime.host import LAUNCH, problem
from tests.runtime.stating import ADDRESSES, DENSE, state

BF16, FP16 = Operation.of(ElementType.BFLOAT16), Operation.of(ElementType.FLOAT16)
BF16_KN = Operation.of(ElementType.BFLOAT16, Layout.KN)
GRID = problem(48, 72, 80)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "misses.log"


@pytest.fixture
def load(golden_path, tmp_path, monkeypatch, log):
    """Load copies of the library, each with its own log in memory, as processes would."""
    copies = iter(range(1000))

    def load(value=str(log), source=golden_path):
        path = tmp_path / f"{next(copies)}.so"
        path.write_bytes(source.read_bytes())
        if value is None:
            monkeypatch.delenv("AOT_GEMM_MISSES", raising=False)
        else:
            monkeypatch.setenv("AOT_GEMM_MISSES", value)
        library = host.Library(path)
        library.c.recorder_reset()
        return library

    return load


def unload(library):
    """Unload a library, which writes what is pending, as an exit does."""
    handle = library.c._handle
    del library.c
    _ctypes.dlclose(handle)


def launch(library, *problems):
    for stated in problems:
        size = library.workspace_bytes(stated)
        assert library.launch(stated, 0x10000 if size else 0, size) == 0, library.error()


def launches(path):
    """Give what a log counts: {(kind, problem): launches}."""
    found = load_shape_set(str(path))
    counted = {}
    for model in found.models:
        (operation,), (weight,) = model.operations, model.weights
        for m, count in zip(model.m, model.counts, strict=True):
            counted[model.name.split()[0], Problem(operation, m, weight.n, weight.k)] = count
    return counted


def test_off_by_default_and_for_an_empty_name(load, tmp_path):
    for value in (None, ""):
        library = load(value)
        assert library.misses_file() is None
        launch(library, GRID, problem(16, 24, 33))
        unload(library)
    assert {path.suffix for path in tmp_path.iterdir()} == {".so"}


def test_counts_what_no_tuned_size_answered(load, log):
    library = load()
    strided = problem(16, 24, 40, strides=((80, 2), (40, 1), (24, 1)))
    offset = problem(64, 4096, 4096, data=(0x10002, 1 << 40, 2 << 40))
    launch(library, problem(16, 4096, 4096), GRID, GRID, problem(300, 72, 80), problem(16, 24, 33))
    launch(library, problem(8, 16, 32, layout="kn"), strided, offset, GRID)
    unload(library)
    assert launches(log) == {
        ("grid", Problem(BF16, 48, 72, 80)): 3,
        ("grid", Problem(BF16, 300, 72, 80)): 1,
        ("grid", Problem(BF16_KN, 8, 16, 32)): 1,
        ("unaligned", Problem(BF16, 16, 24, 33)): 1,
        ("unaligned", Problem(BF16, 64, 4096, 4096)): 1,
        ("strided", Problem(BF16, 16, 24, 40)): 1,
    }
    assert log.read_text() == TEXT
    assert [path.name for path in log.parent.iterdir() if path.suffix != ".so"] == [log.name]


TEXT = """\
# aot_gemm misses 1
# Launches that no tuned (n, k) answered: why, operation, n, k, then each m x its launches. Counts add up over
# processes and runs; delete the file to start anew. `aot shapes from-misses THIS_FILE -o shapes.toml` makes a set
# of shapes of it.
grid bf16_kk 72 80 48x3 300x1
grid bf16_kn 16 32 8x1
unaligned bf16_kk 24 33 16x1
unaligned bf16_kk 4096 4096 64x1
strided bf16_kk 24 40 16x1
"""
HEAD = TEXT.partition("grid")[0]


def test_queries_empty_problems_and_failures_do_not_count(load, log):
    library = load()
    library.select(GRID)
    library.workspace_bytes(GRID)
    launch(library, problem(0, 72, 80), problem(48, 72, 0))
    library.c.recorder_fail(LAUNCH, 719)
    assert library.launch(GRID) == 7
    library.c.recorder_fail(LAUNCH, 0)
    assert library.launch_kernel(2, GRID) == 0
    unload(library)
    assert not log.exists()


def test_both_types_in_one_file(load, log, package):
    library = load(source=Path(package._library.LIBRARY))
    launch(library, GRID, problem(48, 72, 80, dtype=1), problem(48, 88, 96, dtype=1))
    unload(library)
    assert [operation.tag for operation in load_shape_set(str(log)).operations] == ["bf16_kk", "fp16_kk"]
    assert launches(log)["grid", Problem(FP16, 48, 88, 96)] == 1


def test_every_operation_is_written_by_its_tag_and_read_again(load, log, every_path):
    """Twice by libraries that share the file: counts add up, so that the second reads what the first wrote."""
    for _ in range(2):
        library = load(source=every_path)
        for operation in DENSE:
            launch(library, state(library, operation, 48, 80, 96))
            launch(library, state(library, operation, 48, 80, 96, d=(ADDRESSES["d"] + 4, (80, 1))))
        unload(library)
    lines = [x.split() for x in log.read_text().splitlines() if not x.startswith("#")]
    written = {(why, tag): (n, k, row) for why, tag, n, k, row in lines}
    assert written == {(why, x.tag): ("80", "96", "48x2") for x in DENSE for why in ("grid", "unaligned")}


def test_is_on_disk_whole_while_the_process_runs(load, log):
    library = load()
    for count in range(1, 2049):
        launch(library, GRID)
        written = sum(launches(log).values())
        assert written <= count < 2 * written
    for m in range(1, 9):
        launch(library, problem(m, 88, 96))
        assert ("grid", Problem(BF16, m, 88, 96)) in launches(log)


def rounded(m):
    """Round up to three binary digits."""
    step = 2 ** max((m - 1).bit_length() - 3, 0)
    return min(-(-m // step) * step, 2**31 - 1)


@pytest.mark.parametrize("order", [1, -1])
def test_m_of_one_weight_are_bounded_and_none_is_lost(load, log, order):
    # A column whose kernel takes any m without a workspace; A of the longest has 4 TiB.
    def any_m(m):
        return problem(m, 72, 1032, data=(0x10000000000, 0x80000000000, 0x90000000000))

    library = load()
    exact = [*range(1, 40), *range(5000, 5025)]
    launch(library, *(any_m(m) for m in exact[::order]))
    unload(library)
    assert load_shape_set(str(log)).models[0].m == tuple(exact)
    library = load()
    every = [2**31 - 1, *range(1, 3001), *(2**i + 1 for i in range(12, 31))]
    launch(library, *(any_m(m) for m in every[::order]))
    unload(library)
    (model,) = load_shape_set(str(log)).models
    counted = Counter(rounded(m) for m in (*exact, *every))
    assert dict(zip(model.m, model.counts, strict=True)) == counted
    assert len(model.m) < 100


def test_weights_are_bounded_and_the_rest_is_counted(load, log):
    library = load()
    for n in range(1, 601):
        launch(library, problem(8, 8 * n, 80))
        launch(library, problem(8, 8 * n, 80))
    unload(library)
    found = load_shape_set(str(log))
    assert (len(found.models), found.num_dropped) == (512, 2 * 88)
    assert {model.counts for model in found.models} == {(2,)}


def test_counts_add_up_over_processes_and_runs(load, log):
    libraries = [load() for _ in range(3)]
    for i, library in enumerate(libraries):
        for _ in range(100):
            launch(library, GRID, problem(8 + i, 88, 96))
    for library in libraries:
        unload(library)
    assert launches(log) == {
        ("grid", Problem(BF16, 48, 72, 80)): 300,
        **{("grid", Problem(BF16, 8 + i, 88, 96)): 100 for i in range(3)},
    }
    log.unlink()
    again = load()
    launch(again, GRID)
    unload(again)
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 1}


def test_a_file_removed_meanwhile_starts_anew(load, log):
    library = load()
    launch(library, *[GRID] * 4)
    log.unlink()
    launch(library, *[GRID] * 3)
    unload(library)
    assert sum(launches(log).values()) == 3


def test_from_sixteen_threads(load, log):
    library = load()

    def work(i):
        launch(library, *(problem(1 + (i + j) % 50, 72, 80 + 8 * (j % 3)) for j in range(500)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    unload(library)
    assert sum(launches(log).values()) == 16 * 500


def test_a_file_that_is_not_a_log_is_left_alone(load, log, capfd):
    lines = ("grid bf16_kn -16 32 8x1", "grid bf16_kn 16 32", "grid bf16_kn 16 32 8x0", "grid bf16_kn 16 32 8x1 ", "")
    cases = [("version = 1\nm = [1]\n", 1), (TEXT[:-1], 9), (TEXT.replace("8x1\n", f"8x1{' 8x1' * 128}\n"), 6)]
    cases += [(TEXT.replace("grid bf16_kn 16 32 8x1", line), 6) for line in lines]
    for text, line in cases:
        log.write_text(text)
        library = load()
        launch(library, *[GRID] * 5)
        unload(library)
        assert log.read_text() == text
        assert capfd.readouterr().err == (
            f"aot_gemm: will not write to {log}: its line {line} is not of a miss log; products are not affected, "
            "misses may not be logged\n"
        )
    log.unlink()
    log.mkdir()
    library = load()
    launch(library, GRID)
    unload(library)
    assert "it is no regular file" in capfd.readouterr().err
    assert [path.name for path in log.parent.iterdir() if path.suffix != ".so"] == [log.name]


def test_an_empty_file_is_a_log(load, log):
    log.touch()
    library = load()
    launch(library, GRID)
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 1}


def refused(log, why):
    return f"aot_gemm: will not write to {log}: {why}; products are not affected, misses may not be logged\n"


@pytest.fixture
def partial(log):
    return log.with_name("misses.log.partial")


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim.txt"
    path.write_text("what must stay\n")
    path.chmod(0o600)
    return path


def make_link(partial, victim):
    partial.symlink_to(victim)


def make_dangling_link(partial, victim):
    partial.symlink_to(victim.with_name("new.txt"))


def make_hard_link(partial, victim):
    partial.hardlink_to(victim)


def make_pipe(partial, victim):
    os.mkfifo(partial)


def make_directory(partial, victim):
    partial.mkdir()


def make_socket(partial, victim):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(partial))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_link, "a symbolic link"),
        (make_dangling_link, "a symbolic link"),
        (make_hard_link, "a file that has other names too"),
        (make_pipe, "no regular file"),
        (make_directory, "no regular file"),
        (make_socket, "no regular file"),
    ],
)
def test_what_lies_where_the_log_is_written_is_left_alone(load, log, partial, victim, capfd, make, why):
    make(partial, victim)
    before = sorted((x.name, x.lstat().st_mode, x.lstat().st_size) for x in log.parent.iterdir())
    library = load()
    launch(library, *[GRID] * 5)
    assert library.count(LAUNCH) == 5
    unload(library)
    assert capfd.readouterr().err == refused(log, f"its .partial is {why}")
    assert victim.read_text() == "what must stay\n"
    after = sorted((x.name, x.lstat().st_mode, x.lstat().st_size) for x in log.parent.iterdir() if x.suffix != ".so")
    assert after == before


def test_what_lies_there_is_refused_as_long_as_it_does(load, log, partial, capfd):
    partial.symlink_to("nowhere")
    library = load()
    launch(library, *[GRID] * 3)
    partial.unlink()
    launch(library, GRID)
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 4}
    assert capfd.readouterr().err == refused(log, "its .partial is a symbolic link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_left_alone(load, log, partial, capfd):
    partial.write_text("theirs")
    os.chown(partial, 12345, -1)
    library = load()
    launch(library, GRID)
    unload(library)
    assert (partial.read_text(), log.exists()) == ("theirs", False)
    assert capfd.readouterr().err == refused(log, "its .partial belongs to another user")


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_what_a_killed_process_left_is_replaced_not_written_to(load, log, partial, mode, capfd):
    partial.write_text("cut sho")
    partial.chmod(mode)
    with partial.open() as left_over:
        library = load()
        launch(library, GRID)
        assert left_over.read() == "cut sho"
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 1}
    mask = os.umask(0)
    os.umask(mask)
    assert log.stat().st_mode & 0o777 == 0o666 & ~mask
    assert (partial.exists(), capfd.readouterr().err) == (False, "")


def test_a_writer_that_lives_is_waited_for(load, log, partial, capfd):
    with partial.open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        library = load()
        launch(library, *[GRID] * 9)
        assert (partial.exists(), log.exists()) == (True, False)
    launch(library, *[GRID] * 7)
    assert sum(launches(log).values()) == 16
    assert (partial.exists(), capfd.readouterr().err) == (False, "")


def test_a_log_that_is_no_file_is_not_waited_for(load, log, capfd):
    os.mkfifo(log)
    library = load()
    launch(library, *[GRID] * 3)
    unload(library)
    assert capfd.readouterr().err == refused(log, "it is no regular file")
    assert [path.name for path in log.parent.iterdir() if path.suffix != ".so"] == [log.name]


def test_a_log_that_is_too_long_is_not_read(load, log, capfd):
    with log.open("w") as file:
        file.write(TEXT)
        file.truncate(1 << 40)
    library = load()
    launch(library, *[GRID] * 3)
    unload(library)
    assert capfd.readouterr().err == refused(log, "it has more bytes than a miss log")
    assert log.stat().st_size == 1 << 40


def test_the_longest_log_is_read_again(load, log, capfd):
    """Every weight there is room for, with every m that stays apart, counted as often as a number can say."""
    step = [1, 2, 3, 4, *(x << i for i in range(29) for x in (5, 6, 7, 8))]
    m = [x for x in step if x < 2**31] + [2**31 - 1]
    counts = " ".join(f"{x}x{2**63 - 1}" for x in m)
    log.write_text(HEAD + "".join(f"unaligned bf16_kk {n} {n} {counts}\n" for n in range(2**31 - 511, 2**31)))
    library = load()
    launch(library, GRID)
    unload(library)
    found = load_shape_set(str(log))
    assert (len(found.models), found.num_dropped) == (512, 0)
    assert Counter(model.counts for model in found.models) == {(2**63 - 1,) * len(m): 511, (1,): 1}
    assert capfd.readouterr().err == ""


def test_hostile_logs_are_refused_or_read_and_never_hurt(load, log, capfd):
    rng = random.Random(7)
    for _ in range(150):
        content = bytearray(TEXT.encode())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            choice = rng.randrange(4)
            if choice == 0:
                content[at] = rng.randrange(256)
            elif choice == 1:
                del content[at : at + rng.randint(1, 40)]
            elif choice == 2:
                content[at:at] = rng.choice([b"9" * 5000, b"\0", b"\n", b"#" * 5000, b"grid bf16_kk ", b"-", b"%n%s"])
            else:
                content[at:at] = content[: rng.randrange(len(content))]
        log.write_bytes(content)
        library = load()
        launch(library, GRID)
        assert library.count(LAUNCH) == 1
        unload(library)
        said = capfd.readouterr().err
        if said:
            assert re.fullmatch(
                re.escape(refused(log, "its line N is")).replace("N\\ is", r"\d+ is not of a miss log"), said
            )
            assert log.read_bytes() == content
        else:
            assert ("grid", Problem(BF16, 48, 72, 80)) in launches(log)


@pytest.mark.parametrize("name", ["folder", "folder/", "file/misses.log"])
def test_a_place_that_cannot_be_a_log_is_said_once(load, tmp_path, capfd, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    library = load(f"{tmp_path}/{name}")
    launch(library, *[GRID] * 20)
    assert library.count(LAUNCH) == 20
    unload(library)
    why = "it is no regular file" if "folder" in name else "Not a directory"
    what = "will not write to" if "folder" in name else "cannot write"
    assert capfd.readouterr().err == (
        f"aot_gemm: {what} {tmp_path}/{name}: {why}; products are not affected, misses may not be logged\n"
    )
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_name_that_is_too_long_with_its_process_ids_is_refused(load, capfd):
    library = load("%p" * 1500)
    launch(library, GRID)
    assert library.misses_file() is None
    assert capfd.readouterr().err == "aot_gemm: AOT_GEMM_MISSES is longer than a path may be; misses are not logged\n"


def test_what_cannot_be_written_fails_no_launch_and_is_said_once(load, tmp_path, capfd):
    library = load(str(tmp_path / "absent" / "misses.log"))
    launch(library, *[GRID] * 10)
    unload(library)
    assert capfd.readouterr().err == (
        f"aot_gemm: cannot write {tmp_path}/absent/misses.log: No such file or directory; products are not affected, "
        "misses may not be logged\n"
    )


def test_a_relative_name_is_of_the_directory_at_loading(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = load("%p.misses.log")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    launch(library, GRID)
    path = tmp_path / f"{os.getpid()}.misses.log"
    assert path.exists()
    assert library.misses_file() == str(path)


CHILD = """
import ctypes, os, sys

from aot.measure.call_structs import ProblemStruct, TensorStruct

library = ctypes.CDLL(sys.argv[1])

def launch(m, n, k):
    tensors = [TensorStruct(i << 40, (step, 1)) for i, step in ((1, k), (2, k), (3, n))]
    stated = ProblemStruct(ctypes.sizeof(ProblemStruct), library.aot_gemm_operation(b"bf16"), -1, m, n, k, *tensors)
    assert library.aot_gemm_launch(ctypes.byref(stated), None, ctypes.c_size_t(0), None) == 0

{body}
"""


def start(golden_path, log, body):
    environment = {**os.environ, "AOT_GEMM_MISSES": str(log)}
    command = [sys.executable, "-c", CHILD.format(body=body), str(golden_path)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_written_at_exit_and_once_by_a_parent_that_forks(golden_path, log):
    body = """
for _ in range(5):
    launch(48, 72, 80)
child = os.fork()
if child == 0:
    launch(48, 88, 96)
    sys.exit()
os.waitpid(child, 0)
"""
    process = start(golden_path, log, body)
    assert process.communicate(timeout=60) == ("", "")
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 5, ("grid", Problem(BF16, 48, 88, 96)): 1}


def test_a_kill_loses_little_and_damages_nothing(golden_path, log):
    body = """
for i in range(10**9):
    launch(1 + i % 3000, 72, 80 + 8 * (i // 3000 % 40))
"""
    counted = 0
    for pause in (0.0, 0.02, 0.05, 0.1, 0.2):
        processes = [start(golden_path, log, body) for _ in range(2)]
        deadline = time.monotonic() + 60
        while (not log.exists() or sum(launches(log).values()) == counted) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(pause)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert sum(launches(log).values()) > counted
        counted = sum(launches(log).values())
    start(golden_path, log, "launch(48, 4096, 80)").communicate(timeout=60)
    assert launches(log)["grid", Problem(BF16, 48, 4096, 80)] == 1
    assert not log.with_name("misses.log.partial").exists()


def test_processes_that_write_at_once_lose_nothing(golden_path, log):
    body = """
for i in range(4000):
    launch(1 + i % 40, 72, 80 + 8 * (i % 7))
"""
    processes = [start(golden_path, log, body) for _ in range(4)]
    assert [process.communicate(timeout=60) for process in processes] == [("", "")] * 4
    assert sum(launches(log).values()) == 4 * 4000


def test_a_full_disk_leaves_the_old_file(golden_path, log):
    body = """
import resource
launch(48, 72, 80)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for _ in range(20):
    launch(48, 72, 80)
"""
    out, err = start(golden_path, log, body).communicate(timeout=60)
    assert (out, err.count("\n"), err.startswith(f"aot_gemm: cannot write {log}: File too large; ")) == ("", 1, True)
    assert launches(log) == {("grid", Problem(BF16, 48, 72, 80)): 1}
    assert not log.with_name("misses.log.partial").exists()
