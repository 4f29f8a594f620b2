"""The command `aot doctor`: what this machine can and cannot do, and the next command."""

from __future__ import annotations

import click

from aot.cli import tables
from aot.cli.machine import Ability, Machine, abilities, next_command, read_machine
from aot.cli.output import JSON, show
from aot.core.target import load_target, target_names


def machine_lines(machine: Machine) -> str:
    """Say what was found, a thing a line."""
    gpu = machine.gpu
    gib = f"{machine.memory_bytes / 2**30:.1f} GiB of memory, {machine.free_disk_bytes / 2**30:.1f} GiB of disk free"
    has = f"{gpu.name}, {gpu.num_sms} SMs, driver for {gpu.driver_version}" if gpu else "none"
    packages = [f"{name} {number or 'missing'}" for name, number in (machine.compilers | machine.linkers).items()]
    rows = (
        ("machine", f"{machine.machine}, {machine.system}, Python {machine.python}"),
        ("host", f"{machine.num_cpus} CPUs, {gib}"),
        ("GPU", has),
        ("toolchain", ", ".join(packages)),
        ("torch", f"{machine.torch or 'none'}, CUDA {machine.torch_cuda or 'none'}"),
    )
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def doctor_text(machine: Machine, found: list[Ability], command: str) -> str:
    """Show what was found, what can be done with it, and the next command."""
    rows = [("yes" if x.can else "no", x.name, x.why) for x in found]
    return (
        f"{machine_lines(machine)}\n\n{tables.table(('can', 'what', 'with what, or why not'), rows)}\n\nnext: {command}"
    )


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Say what this machine can and cannot do, and the next command.

    Looks at the GPU and its driver, the packages that compile and link, what has been fetched for cross-building,
    emulators, torch and the disk. Writes nothing and uses no network.
    """
    del as_json
    machine, targets = read_machine(), [load_target(name) for name in target_names()]
    found, command = abilities(machine, targets), next_command(machine, targets)
    show(
        lambda: {"machine": machine, "abilities": found, "next": command},
        lambda: doctor_text(machine, found, command),
    )
