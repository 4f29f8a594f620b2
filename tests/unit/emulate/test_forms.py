from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot.emulate.forms import FORMS, expand, form, load_units
from aot.emulate.program import Program
from aot.emulate.ptx import parse_module
from tests.unit.emulate.samples import UNITS, sample
from tests.unit.emulate.snippets import REGISTERS

ASSEMBLER = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
ENTRY = ".address_size 64\n.visible .entry k(.param .u64 param0)\n{" + REGISTERS.replace("\n", " ") + "\nLABEL:\n"
HEADER = f".version 9.0\n.target sm_110a\n{ENTRY}"
NOT_AN_INSTRUCTION = "the_end.u32 %r0;"
"""An error in the last line, so that the assembler reads all and generates no code."""


def core_forms():
    load_units()
    return [x for x, build in FORMS.items() if build.__module__.rsplit(".", 1)[1] in UNITS]


def test_patterns_stand_for_each_of_their_alternatives():
    assert expand("add.{s16,u16}.x") == ["add.s16.x", "add.u16.x"]
    assert expand("a{,.b}{,.c}") == ["a", "a.c", "a.b", "a.b.c"]
    assert expand("plain") == ["plain"]


def test_a_form_has_one_meaning():
    load_units()
    with pytest.raises(ValueError, match=r"add.s32 is registered twice"):
        form("add.{s32,u64}")(lambda *_: None)


@pytest.mark.slow
def test_the_assembler_knows_every_form_of_the_table(tmp_path):
    """What ptxas of CUDA 13.1 takes for sm_110a is an instruction; nothing else is in the table."""
    forms = core_forms()
    path = tmp_path / "forms.ptx"
    path.write_text(HEADER + "\n".join([*map(sample, forms), NOT_AN_INSTRUCTION]) + "\nret;\n}\n")
    command = [str(ASSEMBLER), "-arch", "sm_110a", str(path), "-o", str(tmp_path / "none")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = re.findall(r"line (\d+);\s*error\s*:\s*(.*)", result.stdout + result.stderr)
    first = HEADER.count("\n") + 1
    lines = {int(line) - first: text for line, text in errors}
    assert lines.pop(len(forms), "").startswith("Not a name of any known instruction"), result.stderr
    assert {forms[i]: text for i, text in lines.items() if i < len(forms)} == {}


@pytest.mark.slow
def test_every_form_takes_the_operands_that_the_assembler_takes():
    forms = [x for x in core_forms() if ".L1::" not in x and ".L2::" not in x]
    text = HEADER + "\n".join(map(sample, forms)) + "\nret;\n}\n"
    assert len(forms) > 1000
    assert len(Program(parse_module(text)["k"]).kernel.instructions) == len(forms) + 1
