"""One instruction of each form, with operands of the types that it takes: what the assembler is asked about."""

from __future__ import annotations

import re

from tests.unit.emulate.snippets import REGISTER_OF

UNITS = ("atomics", "barrier", "control", "convert", "copies", "floating", "integer", "launch_control", "load_store",
         "moves", "thread_barrier")  # fmt: skip
"""The modules of aot/emulate/units whose forms are known here."""
RULES = [
    (r"bra.*", "LABEL"),
    (r"ret|exit|trap|griddepcontrol.*|membar.*", ""),
    (r"nanosleep.*", "100"),
    (r"setmaxnreg.*", "64"),
    (r"elect.*", "%r0|%p0, -1"),
    (r"vote.*ballot.*", "%r0, %p1, -1"),
    (r"vote.*", "%p0, %p1, -1"),
    (r"shfl.*", "%r0|%p0, %r1, %r2, %r3, -1"),
    (r"bar\.warp.*", "-1"),
    (r"barrier\.cluster.*", ""),
    (r"bar(rier)?\..*", "1, 64"),
    (r"fence\.proxy\.tensormap.*acquire.*", "[%rd9], 128"),
    (r"fence.*", ""),
    (r"mbarrier\.(init|expect_tx).*", "{place}, %r1"),
    (r"mbarrier\.inval.*", "{place}"),
    (r"mbarrier\.arrive\.expect_tx.*", "_, {place}, %r1"),
    (r"mbarrier\.arrive.*", "_, {place}"),
    (r"mbarrier\..*", "%p0, {place}, %r1"),
    (r"cp\.async\.(commit_group|wait_all)", ""),
    (r"cp\.async\.wait_group", "1"),
    (r"cp\.async\.mbarrier.*", "{place}"),
    (r"cp\..*cache_hint", "[%r9], [%rd9], 16, %rd11"),
    (r"cp\..*", "[%r9], [%rd9], 16"),
    (r"clusterlaunchcontrol\.try_cancel.*", "[%r9], [%r10]"),
    (r"clusterlaunchcontrol\..*pred.*", "%p0, %rq0"),
    (r"clusterlaunchcontrol\..*", "%r0, %rq0"),
    (r"prefetch.*", "[%rd9]"),
    (r"ld\..*", "{elements}, {place}"),
    (r"st\.async.*", "{place}, {elements}, [%r10]"),
    (r"st\..*", "{place}, {elements}"),
    (r"atom\..*cas.*", "{to}, {place}, {a}, {b}"),
    (r"atom\..*", "{to}, {place}, {a}"),
    (r"red\..*cache_hint.*", "{place}, {elements}, %rd11"),
    (r"red\..*", "{place}, {elements}"),
    (r"mapa.*", "%r0, %r1, %r2"),
    (r"cvta.*", "%rd0, %rd1"),
    (r"cvt\..*(bf16x2|f16x2|e4m3x2|e5m2x2|e2m1x2)\.f32", "{converted}, {a}, {b}"),
    (r"cvt\..*", "{converted}, {a}"),
    (r"fma\.rn\.f32\.b?f16", "%f0, {a}, {b}, %f3"),
    (r"(add|sub)\.rn\.f32\.b?f16", "%f0, {a}, %f2"),
    (r"mul\.wide.*", "{wide}0, {a}, {b}"),
    (r"mad\.wide.*", "{wide}0, {a}, {b}, {wide}3"),
    (r"setp.*", "%p0, {a}, {b}"),
    (r"selp.*", "{to}, {a}, {b}, %p1"),
    (r"(popc|clz|bfind).*", "%r0, {a}"),
    (r"sh[lr]\..*", "{to}, {a}, %r2"),
    (r"lop3.*", "%r0, %r1, %r2, %r3, 0x3c"),
    (r"(mad|fma|shf|bfe|prmt)\..*", "{to}, {a}, {b}, {c}"),
    (r"(add|sub|mul|div|rem|min|max|and|or|xor|copysign)\..*", "{to}, {a}, {b}"),
    (r"(mov|not|neg|abs|ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh|brev)\..*", "{to}, {a}"),
]
"""Operands by forms; of several rules that fit, the first."""


def _place(parts: list[str]) -> str:
    if "param" in parts:
        return "[param0]"
    return "[%r9]" if any(x.startswith("shared") for x in parts) else "[%rd9]"


def sample(form: str) -> str:
    """Return an instruction of a form.

    Raises:
        StopIteration: nothing is known of its operands.
    """
    parts = form.split(".")
    register = REGISTER_OF.get(parts[-1], "")
    count = next((int(x[1]) for x in parts if x in ("v2", "v4", "v8")), 1)
    names = [f"{register}{i + 1}" for i in range(count)]
    operands = next(operands for pattern, operands in RULES if re.fullmatch(pattern, form))
    return (
        f"{form} "
        + operands.format(
            place=_place(parts),
            elements=names[0] if count == 1 else "{" + ", ".join(names) + "}",
            to=f"{register}0",
            a=f"{register}1",
            b=f"{register}2",
            c=f"{register}3",
            converted=f"{REGISTER_OF.get(parts[-2], '') if len(parts) > 1 else ''}0",
            wide="%rd" if parts[-1].endswith("32") else "%r",
        )
        + ";"
    )
