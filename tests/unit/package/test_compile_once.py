import subprocess
import sys
from pathlib import Path

import pytest

from aot.package import compile_once

pytestmark = pytest.mark.slow

COMPILER = """
import sys
from pathlib import Path
words = sys.argv[1:]
with open(words[0], "a") as log:
    log.write("compiled\\n")
out, source = Path(words[words.index("-o") + 1]), Path(words[words.index("-c") + 1])
if "#error" in source.read_text():
    sys.exit(3)
out.write_text("object of " + source.name)
Path(words[words.index("-MF") + 1]).write_text("deps")
"""


@pytest.fixture
def compile_in(tmp_path):
    """Give what compiles main.cc of a project's text in a folder; gives the exit code and how often it was compiled."""
    (tmp_path / "cc.py").write_text(COMPILER)

    def run(folder, text='#include "a.h"\nint x;\n', header="int a;\n", flags=("-O3",)):
        root = tmp_path / folder
        (root / "include").mkdir(parents=True, exist_ok=True)
        (root / "main.cc").write_text(text)
        (root / "include" / "a.h").write_text(header)
        log, out = tmp_path / "log", root / "main.o"
        command = [sys.executable, tmp_path / "cc.py", log, *flags, f"-ffile-prefix-map={root}=.", f"-I{root}/include"]
        command += ["-MD", "-MT", out, "-MF", f"{out}.d", "-o", out, "-c", root / "main.cc"]
        script = [sys.executable, "-I", "-S", compile_once.__file__, tmp_path / "kept", root]
        code = subprocess.run([*script, *command], check=False).returncode
        if code == 0:
            assert out.read_text() == "object of main.cc"
            assert Path(f"{out}.d").exists()
        return code, len(log.read_text().splitlines())

    return run


def test_an_equal_source_is_compiled_once_wherever_it_lies(compile_in):
    assert [compile_in(x) for x in ("one", "two", "one")] == [(0, 1)] * 3


def test_the_line_that_names_a_manifest_does_not_count(compile_in):
    compile_in("one", header="// of one\nint a;\n")
    assert compile_in("two", header="// of another\nint a;\n") == (0, 1)


@pytest.mark.parametrize(
    "change", [{"text": '#include "a.h"\nint y;\n'}, {"header": "int b;\n"}, {"flags": ("-O0",)}], ids=str
)
def test_what_decides_is_compiled_again(compile_in, change):
    compile_in("one")
    assert compile_in("one", **change) == (0, 2)


def test_a_header_that_only_a_header_includes_counts(compile_in, tmp_path):
    for number, text in enumerate(("int b;\n", "int c;\n"), 1):
        (tmp_path / "one" / "include").mkdir(parents=True, exist_ok=True)
        (tmp_path / "one" / "include" / "b.h").write_text(text)
        assert compile_in("one", header="#include <b.h>\n") == (0, number)


def test_what_fails_says_so_each_time_and_nothing_is_kept(compile_in, tmp_path):
    assert [compile_in("one", text="#error\n") for _ in range(2)] == [(3, 1), (3, 2)]
    assert not (tmp_path / "kept").exists()
