"""What a process that compiles imports of quack, over a package of its name whose own operations cannot be imported."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from aot.compile.quack_alone import import_quack_alone
import_quack_alone()
import_quack_alone()
sys.path.insert(0, sys.argv[1])
from quack.blockscaled import parts
print(parts.NUMBER, *sorted(x for x in sys.modules if x.startswith("quack")))
"""


@pytest.mark.parametrize("assembler", [None, "/bin/ptxas"])
def test_modules_are_imported_without_their_packages_operations(tmp_path, monkeypatch, assembler):
    inner = tmp_path / "quack" / "blockscaled"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("raise ValueError('all of it is imported')\n")
    (inner / "parts.py").write_text("NUMBER = 3\n")
    (inner.parent / "dsl.py").write_text("")
    monkeypatch.delenv("CUTE_DSL_PTXAS_PATH", raising=False)
    if assembler:
        monkeypatch.setenv("CUTE_DSL_PTXAS_PATH", assembler)
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    if assembler:
        assert done.stderr.endswith("ValueError: all of it is imported\n")
    else:
        assert done.stdout == "3 quack quack.blockscaled quack.blockscaled.parts quack.dsl\n", done.stderr
