"""The command that compiles without measuring: compile."""

from __future__ import annotations

from typing import Any

import click

from aot.cli import tables
from aot.cli.fleet import CLUSTER, fleet_of
from aot.cli.options import (
    ASKED_OPERATIONS,
    JOBS,
    KERNELS,
    OPERATIONS_AXIS,
    SHAPES,
    TARGET,
    Command,
    asked_operations,
    options,
)
from aot.cli.output import JSON, show
from aot.cli.tune import PRUNE
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace, compile_all
from aot.core.candidate import KernelKey
from aot.core.errors import AotError
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.space.enumeration import Patterns
from aot.tune.tuning import TuningRequest, tuning_candidates


@click.command(name="compile", cls=Command, axes=(OPERATIONS_AXIS,))
@options(TARGET, SHAPES, KERNELS, ASKED_OPERATIONS, JOBS, CLUSTER)
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Candidates of each operation.")
@JSON
def compile_command(**values: Any) -> None:
    """Compile the candidates that the cost model ranks best on a shape set. Needs no GPU; resumes."""
    operations, shapes = asked_operations(values), load_shape_set(values["shapes"])
    request = TuningRequest(shapes, operations, Patterns.parse(values["kernels"]), values["limit"], PRUNE)
    device = load_target(values["target"])
    keys = [KernelKey(x, candidate) for x in operations for candidate in tuning_candidates(request, device, x)]
    with fleet_of(values["cluster"], values["cluster_tls"], values["jobs"], measures=False) as fleet:
        compilers = fleet.compilers if fleet else Processes(values["jobs"])
        artifacts, failures = compile_all(keys, device, Workplace(compilers=compilers))
    show(lambda: tables.artifact_facts(artifacts, failures), lambda: tables.artifacts_table(artifacts, failures))
    if failures:
        raise SystemExit(AotError.exit_code)
