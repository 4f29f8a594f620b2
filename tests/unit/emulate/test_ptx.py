from __future__ import annotations

import numpy as np
import pytest

from aot.core.errors import CompileError
from aot.emulate.faults import UnknownInstructionError
from aot.emulate.program import Program
from aot.emulate.ptx import (
    Address,
    Discard,
    Guard,
    Immediate,
    Negated,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
    parse_module,
)
from tests.unit.emulate.snippets import run


def parse(body, *, parameters=".param .u64 p0", header="", name="k"):
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n{header}\n.visible .entry {name}({parameters})\n"
    return parse_module(f"{text}{{\n{body}\n}}\n")[name]


def operands(line, declarations=".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;"):
    return parse(f"{declarations}\n{line}\nret;").instructions[0].operands


def test_an_instruction_has_its_form_its_operands_and_its_line():
    found = parse(".reg .b32 %r<3>;\n\nadd.s32\t%r1, %r2,\n  5; // a comment; with a semicolon\nret;").instructions
    assert [x.opcode for x in found] == ["add.s32", "ret"]
    assert found[0].operands == (Register("%r1"), Register("%r2"), Immediate(5))
    assert (found[0].line, found[0].where) == (9, "line 9: add.s32 %r1, %r2, 5")
    assert found[1].line == 11


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17),
        ("-1", -1),
        ("0x1F", 31),
        ("-0x10", -16),
        ("0XfFfFfFfF", 2**32 - 1),
        ("4294967295U", 2**32 - 1),
        ("017", 15),
        ("0b101", 5),
        ("0", 0),
        ("0f3F800000", 0x3F800000),
        ("0F80000000", 0x80000000),
        ("0d3FF0000000000000", 0x3FF0000000000000),
    ],
)
def test_constants(text, value):
    assert operands(f"mov.b32 %r1, {text};")[1] == Immediate(value)


def test_kinds_of_operands():
    assert operands("mov.u32 %r1, %tid.x;")[1] == Special("%tid.x")
    assert operands("mov.b64 %rd1, {%r1, _};")[1] == Vector((Register("%r1"), Discard()))
    assert operands("shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;")[0] == Pair(Register("%r1"), Register("%p1"))
    assert operands("elect.sync _|%p1, -1;")[0] == Pair(Discard(), Register("%p1"))
    assert operands("vote.sync.any.pred %p1, !%p2, -1;")[1] == Negated(Register("%p2"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[%rd1]", Address(Register("%rd1"), 0, ())),
        ("[%rd1+16]", Address(Register("%rd1"), 16, ())),
        ("[%rd1 + 0x10]", Address(Register("%rd1"), 16, ())),
        ("[%rd1+-16]", Address(Register("%rd1"), -16, ())),
        ("[%rd1-8]", Address(Register("%rd1"), -8, ())),
        ("[p0+4]", Address(Symbol("p0"), 4, ())),
        ("[%rd1, {%r1, %r2}]", Address(Register("%rd1"), 0, (Vector((Register("%r1"), Register("%r2"))),))),
    ],
)
def test_addresses(text, expected):
    assert operands(f"ld.global.u32 %r1, {text};")[1] == expected


def test_guards():
    found = parse(".reg .pred %p<2>; .reg .b32 %r<2>;\n@%p1 mov.b32 %r1, 1;\n@!%p1 bra $L;\n$L: ret;").instructions
    assert [x.guard for x in found] == [Guard("%p1", is_negated=False), Guard("%p1", is_negated=True), None]
    assert found[1].target == 2


def test_a_register_in_braces_hides_the_one_outside():
    kernel = parse(
        """.reg .b32 %r<2>; .reg .b32 a;
        mov.b32 a, 1;
        { .reg .b64 a; mov.b64 a, 2; { .reg .f32 a; mov.f32 a, 0f00000000; } mov.b64 a, 4; }
        mov.b32 a, 5; ret;"""
    )
    names = [x.operands[0].name for x in kernel.instructions[:-1]]
    assert [kernel.registers[x] for x in names] == ["b32", "b64", "f32", "b64", "b32"]
    assert names[0] == names[4]
    assert names[1] == names[3]
    assert len(set(names)) == 3


def test_ranges_of_registers_in_braces_are_those_of_the_braces():
    kernel = parse(
        """.reg .b32 %r<2>;
        { .reg .b32 %t<2>; mov.b32 %t1, 1; }
        { .reg .b64 %t<2>; mov.b64 %t1, 1; }
        { .reg .pred %r<2>; mov.pred %r1, 1; }
        mov.b32 %r1, 1; ret;"""
    )
    names = [x.operands[0].name for x in kernel.instructions[:-1]]
    assert [kernel.registers[x] for x in names] == ["b32", "b64", "pred", "b32"]


def test_labels_in_braces_are_those_of_the_braces():
    """As the waits of inline assembly have them, which are pasted many times."""
    wait = "{ .reg .pred P; LAB: mov.pred P, 1; @P bra DONE; bra LAB; DONE: }"
    found = parse(
        f"{wait}\nmov.b32 %r1, 1;\n{wait}\nbra LAB;\nLAB: ret;".replace("mov.b32", ".reg .b32 %r<2>; mov.b32")
    )
    assert [x.target for x in found.instructions] == [None, 3, 0, None, None, 7, 4, 8, None]


def test_a_jump_out_of_braces_finds_the_label_outside():
    found = parse("{ { bra OUT; } }\ntrap;\nOUT: ret;").instructions
    assert found[0].target == 2


def test_vector_registers_have_parts():
    kernel = parse("{ .reg .v4 .b32 v; mov.b32 v.x, 1; ld.global.v4.u32 v, [p0]; mov.b32 v.w, 1; } ret;")
    first, load, last, _ = kernel.instructions
    assert len(load.operands[0].items) == 4
    assert (load.operands[0].items[0], load.operands[0].items[3]) == (first.operands[0], last.operands[0])


def test_parameters_lie_at_multiples_of_their_alignment():
    kernel = parse(
        "ret;",
        parameters=".param .u32 a, .param .u64 b, .param .u8 c, .param .align 64 .b8 d[128], .param .u16 e, "
        ".param .align 4 .b8 f[6], .param .f32 g, .param .u64 .ptr .global .align 1 h",
    )
    assert kernel.parameters == {
        "a": (0, 4),
        "b": (8, 8),
        "c": (16, 1),
        "d": (64, 128),
        "e": (192, 2),
        "f": (196, 6),
        "g": (204, 4),
        "h": (208, 8),
    }
    assert kernel.parameter_sizes == (4, 8, 1, 128, 2, 6, 4, 8)
    assert kernel.parameter_bytes == 216


def test_a_kernel_without_parameters():
    kernel = parse("ret;", parameters="")
    assert (kernel.parameters, kernel.parameter_bytes) == ({}, 0)


def test_static_shared_variables_lie_behind_each_other():
    kernel = parse(
        ".shared .align 16 .b8 inner[20];\nret;",
        header=".shared .align 4 .b8 outer[6];\n.extern .shared .align 128 .b8 dynamic[];",
    )
    assert kernel.shared == {"outer": 0, "inner": 16}
    assert kernel.static_bytes == 36
    assert kernel.dynamic == {"dynamic"}
    assert kernel.dynamic_start == 128


def test_dynamic_shared_memory_begins_at_a_multiple_of_its_alignment():
    body = """
    mov.u32 %r1, tile; mov.u32 %r2, buffer;
    st.global.v2.u32 [%rd0], {%r1, %r2};
    mov.u32 %r3, 7; st.shared.u32 [%r2+60], %r3;
    """
    header = ".shared .align 4 .b8 tile[12];\n.extern .shared .align 64 .b8 buffer[];"
    outcome = run(body, np.zeros(2, np.uint32), header=header, smem=64)
    assert list(outcome.arrays[0]) == [1024, 1024 + 64]
    assert not outcome.kinds


def test_several_kernels_of_a_module():
    text = ".version 9.0\n" + "".join(
        f".visible .entry k{i}(.param .u32 p)\n.reqntid {i + 1}\n"
        f"{{\n.reg .b32 %r<{i + 2}>;\nmov.b32 %r1, {i};\nret;\n}}\n"
        for i in range(3)
    )
    found = parse_module(text)
    assert list(found) == ["k0", "k1", "k2"]
    assert [x.instructions[0].operands[1] for x in found.values()] == [Immediate(i) for i in range(3)]


def test_locations_and_pragmas_say_nothing():
    found = parse('.pragma "nounroll";\n.loc 1 12 3\n.reg .b32 %r<2>;\n.loc 1 13 3\nmov.b32 %r1, 1;\nret;').instructions
    assert [x.opcode for x in found] == ["mov.b32", "ret"]


def test_comments_are_of_either_kind():
    found = parse(".reg .b32 %r<2>;\n/* mov.b32 %r1, 2;\n */ mov.b32 %r1, 1; // ret;\nret;").instructions
    assert [x.opcode for x in found] == ["mov.b32", "ret"]
    assert found[0].line == 9


def test_a_kernel_may_end_without_ret():
    """Labels at the end included: control that reaches the closing brace ends the thread."""
    body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 bra END; st.global.u32 [%rd0], %r1; END:"
    text = parse(
        ".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>; ld.param.u64 %rd0, [p0];" + body,
    )
    assert Program(text).kernel.instructions[-1].opcode == "ret"


@pytest.mark.parametrize(
    ("body", "header", "message"),
    [
        (".reg .b24 %r<3>; ret;", "", "'.reg .b24 %r<3>' declares no registers that are understood"),
        (".shared .b32 x; ret;", "", "'.shared .b32 x' declares no shared memory that is understood"),
        ("bra NOWHERE; ret;", "", "there is no label NOWHERE"),
        (
            ".local .align 8 .b8 depot[16]; ret;",
            "",
            "'.local .align 8 .b8 depot[16]' is no declaration that is understood",
        ),
        ("{ INNER: ret; } bra INNER;", "", "there is no label INNER"),
    ],
)
def test_what_is_not_understood_is_refused(body, header, message):
    with pytest.raises(CompileError) as error:
        parse(body, header=header)
    assert message in str(error.value)


def test_what_a_pointer_points_at_does_not_change_a_parameter():
    text = ".param .u32 n, .param .u64 .ptr .global .align 16 p, .param .u64 .ptr q, .param .u64 .ptr .align 64 r"
    assert parse("ret;", parameters=text).parameters == {"n": (0, 4), "p": (8, 8), "q": (16, 8), "r": (24, 8)}


def test_a_parameter_that_is_not_understood_is_refused():
    with pytest.raises(CompileError) as error:
        parse("ret;", parameters=".param .texref t")
    assert "'.param .texref t' is no parameter that is understood" in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "frobnicate.u32 %r1, %r2;",
        "add.rn.s32 %r1, %r1, %r2;",
        "mov.u32 %r1, nowhere;",
        "mov.u32 %r1, p0+4;",
        "mov.f32 %r1, 1.5;",
        "mov.u32 %r1, %nosuchregister;",
        "setp.lt.s32 %p1|%p2, %r1, %r2;",
        "ld.global.u32 %r1, %rd1;",
        "add.s32 5, %r1, %r2;",
        "add.s32 %r1, %r2;",
    ],
)
def test_instructions_that_are_not_known_are_refused_before_anything_runs(line):
    kernel = parse(f".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<3>;\n{line}\nret;")
    with pytest.raises(UnknownInstructionError) as error:
        Program(kernel)
    assert str(error.value).startswith(f"line 8: {line[:-1]}: the interpreter does not know ")
