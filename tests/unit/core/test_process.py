"""What is run ends with its caller, and its failures are told apart."""

import multiprocessing.process
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aot.core import process
from aot.core.errors import PackageError, ResourceError
from aot.core.process import owned, run


def test_run_gives_the_output_and_echoes_when_asked(capsys):
    lines = []
    code = "import sys; print('done'); print('too', file=sys.stderr)"
    assert sorted(run([sys.executable, "-c", code], "saying so", verbose=True, each_line=lines.append).split()) == [
        "done",
        "too",
    ]
    assert sorted(lines) == ["done\n", "too\n"]
    assert capsys.readouterr().err.startswith(f"+ {sys.executable} -c 'import sys; ")


def test_a_failed_command_prints_command_code_and_tail():
    code = "import sys; [print(f'line {i}') for i in range(100)]; sys.exit(3)"
    with pytest.raises(PackageError) as caught:
        run([sys.executable, "-c", code], "building")
    lines = str(caught.value).splitlines()
    assert lines[0] == "building failed with exit code 3"
    assert lines[1].startswith(f"  command: {sys.executable} -c ")
    assert (lines[2], lines[3], lines[-1]) == ("  output:", "    line 60", "    line 99")


def test_a_command_that_is_not_there_is_an_error():
    with pytest.raises(PackageError, match=r"building failed: cannot run no-such-command: No such file or directory"):
        run(["no-such-command"], "building")


@pytest.mark.parametrize(
    ("script", "head"),
    [
        ("kill -9 $$", "building was ended by signal 9"),
        ("echo 'zig: No space left on device'; exit 1", "building failed with exit code 1"),
        ("echo 'clang: out of memory'; exit 1", "building failed with exit code 1"),
    ],
)
def test_what_the_machine_is_to_blame_for_is_another_error(script, head):
    with pytest.raises(ResourceError, match=f"{head}\n(.*\n)*  next: free disk or memory and run again"):
        run(["sh", "-c", script], "building")


def test_output_that_is_no_text_is_shown_all_the_same():
    code = "import os, sys; os.write(1, bytes([255, 10])); sys.exit(1)"
    with pytest.raises(PackageError, match="\ufffd"):
        run([sys.executable, "-c", code], "building")


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_files_that_are_made_have_modes_of_ours(tmp_path, umask):
    before = os.umask(umask)
    try:
        run(["touch", str(tmp_path / "a")], "touching")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_error_ends_the_command_and_all_that_it_started():
    """A grandchild with the pipe open would keep the reader waiting for ever, and go on."""
    numbers = []

    def stop(line):
        numbers.extend(map(int, line.split()))
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", "sleep 600 & echo $$ $!; wait"], "waiting", each_line=stop)
    assert time.monotonic() - start < 300  # not the grandchild's 600
    assert len(numbers) == 2
    wait_for(lambda: not any(map(is_alive, numbers)))
    assert process._children == set()


def test_a_process_in_a_group_of_its_own_is_ended_too():
    """As those are that ninja starts."""
    numbers = []

    def stop(line):
        numbers.append(int(line))
        raise KeyboardInterrupt

    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], process_group=0); print(p.pid, flush=True); p.wait()"
    )
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", code], "waiting", each_line=stop)
    wait_for(lambda: not any(map(is_alive, numbers)))


def test_what_is_owned_can_be_killed_from_elsewhere(monkeypatch):
    # The compiler that the tests keep is a child too, and others still need it.
    monkeypatch.setattr(multiprocessing.process, "active_children", list)
    child = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 60"], start_new_session=True)
    with owned(child):
        process.kill_children()
        assert child.wait(5) == -9
