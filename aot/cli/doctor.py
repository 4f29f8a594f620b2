"""The command `aot doctor`: what this machine can do, or how a wheel serves a model, and the next command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot.cli import tables
from aot.cli.machine import Ability, Machine, abilities, next_command, read_machine
from aot.cli.model_doctor import asked_of, report_of
from aot.cli.options import TARGET, Axis, Command, is_given
from aot.cli.output import JSON, show
from aot.cli.selection import MODES, selection_of_layers, told_mode, told_options
from aot.cli.shapes import CONFIG_AXIS, CONFIG_OPTIONS, configured_model
from aot.core.progress import waiting
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


@click.command(cls=Command, axes=(CONFIG_AXIS, Axis(MODES, told_mode)))
@click.argument("model", required=False, type=click.Path(path_type=Path))
@TARGET
@told_options("Judge by what the cost model selects for --shapes.")
@CONFIG_OPTIONS
@JSON
@click.pass_context
def doctor(context: click.Context, /, **values: Any) -> None:
    """Say what this machine can do, or how a wheel serves MODEL, and the next command.

    Without MODEL, looks at the GPU and its driver, the packages that compile and link, what has been fetched for
    cross-building, emulators, torch and the disk.

    MODEL is a Hugging Face config.json, or a folder that holds one. Each of its Linears is then looked up in the table
    of --target: native, by a kernel tuned for it or near it; slow, by the general kernel; or absent, where no kernel
    multiplies the format that its weights are stored in. Without --selection, the table is that of the last selection
    made here, or else what `aot build` ships.

    Writes nothing and uses no network.
    """
    path = values["model"]
    if path is None:
        _check_machine(context)
        return
    model = configured_model(path, values | ({} if values["fused"] else {"unfused": True}))
    chosen = selection_of_layers(context, asked_of(model))
    with waiting("look up the model's products"):
        found = report_of(model, chosen, load_target(chosen.target), path)
    for note in model.notes:
        click.echo(note, err=True)
    show(lambda: found.facts() | {"notes": model.notes}, lambda: found.text)


def _check_machine(context: click.Context) -> None:
    """Say what the machine can do; what is said of a model means nothing then (click.UsageError)."""
    given = next((x for x in context.command.params if x.name != "as_json" and is_given(context, x.name or "")), None)
    if given is not None:
        raise click.UsageError(f"{given.opts[-1]} means nothing without MODEL; leave it out, or name a model")
    machine, targets = read_machine(), [load_target(name) for name in target_names()]
    found, command = abilities(machine, targets), next_command(machine, targets)
    show(
        lambda: {"machine": machine, "abilities": found, "next": command},
        lambda: doctor_text(machine, found, command),
    )
