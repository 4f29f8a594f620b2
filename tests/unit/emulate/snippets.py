"""Small PTX kernels for the interpreter's tests: wrap a body into a module, run it, hand out what it left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot.emulate.device import Report
from aot.emulate.faults import Fault, FindingKind
from aot.emulate.launch import PROGRAMMATIC, Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.program import Program
from aot.emulate.ptx import parse_module
from aot.emulate.schedule import Mode, Schedule

WARP_ORDERS = [Schedule(Mode.RANDOM, 1), Schedule(Mode.RANDOM, 2), Schedule(Mode.PRIORITY, 3), Schedule(Mode.STRICT, 4),
               Schedule(Mode.STRICT, 5), Schedule(Mode.LAZY, 6)]  # fmt: skip
"""Orders of warps, for kernels in which nothing completes on its own: other modes are like the random one then."""
SCHEDULES = [Schedule(mode, seed) for seed, mode in enumerate(x for x in Mode if x.value not in {
    "hold_stores", "hold_store_writes", "hold_products", "behind_itself"})]  # fmt: skip
"""Every mode that differs for operations of the core, which has no TMA stores and no products."""

REGISTERS = """
.reg .pred %p<20>; .reg .b8 %b<4>; .reg .b16 %rs<20>; .reg .b32 %r<40>; .reg .b64 %rd<40>;
.reg .f32 %f<20>; .reg .f64 %fd<20>; .reg .b128 %rq<4>;
"""
REGISTER_OF = {
    "b8": "%rs", "u8": "%rs", "s8": "%rs", "b16": "%rs", "u16": "%rs", "s16": "%rs", "f16": "%rs", "bf16": "%rs",
    "b32": "%r", "u32": "%r", "s32": "%r", "f32": "%f", "f16x2": "%r", "bf16x2": "%r", "tf32": "%r", "b64": "%rd",
    "u64": "%rd", "s64": "%rd", "f64": "%fd", "f32x2": "%rd", "b128": "%rq", "pred": "%p", "e4m3x2": "%rs",
    "e5m2x2": "%rs", "e2m1x2": "%b",
}  # fmt: skip
"""The registers above that hold a type."""
STORED = {"%rs": ("b16", np.uint16), "%r": ("b32", np.uint32), "%f": ("f32", np.uint32), "%rd": ("b64", np.uint64),
          "%fd": ("f64", np.uint64)}  # fmt: skip
"""How a register is loaded and stored."""


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    arrays: tuple[np.ndarray, ...]
    """The buffers, as they are after the run."""
    report: Report | None
    """None where the run ended with a fault."""
    fault: Fault | None

    @property
    def kinds(self) -> set[FindingKind]:
        assert self.report is not None, self.fault
        return {x.kind for x in self.report.findings}

    @property
    def texts(self) -> list[str]:
        """Return place and text of each finding, for messages of tests."""
        assert self.report is not None, self.fault
        return [f"{x.kind.name} {x.where}: {x.text}" for x in self.report.findings]


def module(body: str, num_pointers: int, *, header: str = "", name: str = "kernel") -> str:
    """Wrap a body into a module whose kernel has its pointers in %rd0, %rd1, ..."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(num_pointers))
    loads = "\n".join(f"ld.param.u64 %rd{i}, [p{i}];" for i in range(num_pointers))
    return (
        f".version 9.0\n.target sm_90a\n.address_size 64\n{header}\n"
        f".visible .entry {name}({parameters})\n{{\n{REGISTERS}{loads}\n{body}\nret;\n}}\n"
    )


def compile_body(body: str, num_pointers: int = 1, *, header: str = "", name: str = "kernel") -> Program:
    """Make a body an executable kernel."""
    return Program(parse_module(module(body, num_pointers, header=header, name=name))[name])


@dataclass(frozen=True)
class Kernel:
    """A body, and how it is launched."""

    body: str
    block: int = 32
    grid: int = 1
    cluster: int = 1
    smem: int = 0
    header: str = ""
    programmatic: bool = False


def run_kernels(
    kernels: Sequence[Kernel],
    *arrays: np.ndarray,
    schedule: Schedule | None = None,
    resident: int = 4,
    read_only: Sequence[int] = (),
    limit: int = 200_000,
    num_registers: int = 0,
    counts: bool = False,
) -> Outcome:
    """Run kernels behind each other, all on the same buffers."""
    memory = GlobalMemory()
    addresses = [memory.allocate(x.nbytes, f"array {i}", writable=True) for i, x in enumerate(arrays)]
    for address, x in zip(addresses, arrays, strict=True):
        memory.view(address, x.nbytes)[:] = np.frombuffer(x.tobytes(), np.uint8)
    for i in read_only:
        memory.protect(addresses[i], writable=False)
    parameters = tuple(int(x).to_bytes(8, "little") for x in addresses)
    programs = {
        f"k{i}": compile_body(x.body, len(arrays), header=x.header, name=f"k{i}") for i, x in enumerate(kernels)
    }
    launches = [
        Launch(f"k{i}", (x.grid, 1, 1), (x.block, 1, 1), (x.cluster, 1, 1), x.smem, parameters,
               {PROGRAMMATIC: (int(x.programmatic),)})
        for i, x in enumerate(kernels)
    ]  # fmt: skip
    machine = Machine(
        programs,
        memory,
        schedule or Schedule(),
        resident=resident,
        limit=limit,
        num_registers=num_registers,
        counts=counts,
    )
    report, fault = None, None
    try:
        report = machine.run(launches)
    except Fault as error:
        fault = error
    found = tuple(
        memory.view(a, x.nbytes).copy().view(x.dtype).reshape(x.shape) for a, x in zip(addresses, arrays, strict=True)
    )
    return Outcome(found, report, fault)


def run(body: str, *arrays: np.ndarray, schedule: Schedule | None = None, **options: object) -> Outcome:
    """Run one kernel: `options` are those of `Kernel` and of `run_kernels`."""
    launched = {k: options.pop(k) for k in ("block", "grid", "cluster", "smem", "header") if k in options}
    return run_kernels([Kernel(body, **launched)], *arrays, schedule=schedule, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Operand:
    """Values of a source operand in raw bits, one for each row, and its type."""

    kind: str
    values: Sequence[int]


def instruction_body(form: str, to: str, kinds: Sequence[str], tail: str = "") -> str:
    """Return a body that executes one form on a row for each thread: %rd0 is the result, %rd1, ... the operands."""
    lines = ["mov.u32 %r30, %ctaid.x;", "mov.u32 %r31, %ntid.x;", "mov.u32 %r32, %tid.x;",
             "mad.lo.s32 %r33, %r30, %r31, %r32;"]  # fmt: skip
    sources = []
    for i, kind in enumerate(kinds):
        register = REGISTER_OF[kind]
        sources.append(f"{register}{i + 11}")
        name, dtype = STORED["%r" if register == "%p" else register]
        lines.append(f"mul.wide.u32 %rd30, %r33, {np.dtype(dtype).itemsize};")
        lines.append(f"add.s64 %rd31, %rd{i + 1}, %rd30;")
        target = f"%r{i + 11}" if register == "%p" else sources[-1]
        lines.append(f"ld.global.{name} {target}, [%rd31];")
        if register == "%p":
            lines.append(f"setp.ne.u32 {sources[-1]}, {target}, 0;")
    register = REGISTER_OF[to]
    result = f"{register}10"
    lines.append(f"{form} {result}, {', '.join(sources)}{tail};")
    if register == "%p":
        lines.append(f"selp.b32 %r10, 1, 0, {result};")
        register = "%r"
    name, dtype = STORED[register]
    lines += [f"mul.wide.u32 %rd30, %r33, {np.dtype(dtype).itemsize};", "add.s64 %rd31, %rd0, %rd30;",
              f"st.global.{name} [%rd31], {register}10;"]  # fmt: skip
    return "\n".join(lines)


def compute(form: str, to: str, *operands: Operand, tail: str = "") -> list[int]:
    """Execute one form on rows of raw bits; return the raw bits of its results.

    Args:
        form: the instruction.
        to: the type of its destination.
        operands: its sources.
        tail: constant operands behind them.
    """
    rows = len(operands[0].values)
    block = min(-(-rows // 32) * 32, 1024)
    padded = -(-rows // block) * block
    stored = [STORED["%r" if REGISTER_OF[x.kind] == "%p" else REGISTER_OF[x.kind]][1] for x in operands]
    arrays = []
    for x, dtype in zip(operands, stored, strict=True):
        mask = 2 ** (8 * np.dtype(dtype).itemsize) - 1
        values = [v & mask for v in x.values]
        arrays.append(np.array([*values, *[values[0]] * (padded - rows)], dtype))
    register = REGISTER_OF[to]
    result = np.zeros(padded, STORED["%r" if register == "%p" else register][1])
    body = instruction_body(form, to, [x.kind for x in operands], tail)
    found = run(body, result, *arrays, block=block, grid=padded // block)
    assert found.report is not None, found.fault
    return [int(x) for x in found.arrays[0][:rows]]
