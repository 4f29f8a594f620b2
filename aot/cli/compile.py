"""The command that compiles without measuring: compile."""

from __future__ import annotations

from typing import Any

import click

from aot.cli import tables
from aot.cli.fleet import CLUSTER, fleet_of
from aot.cli.options import (
    ASKED_OF_ANY_KIND,
    JOBS,
    KERNELS,
    OPERATIONS_AXIS,
    SHAPES,
    TARGET,
    Command,
    asked_of_any_kind,
    options,
)
from aot.cli.output import JSON, show
from aot.cli.tune import PRUNE
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace, compile_all
from aot.core.errors import AotError
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.space.enumeration import Patterns
from aot.tune.kinds import TuningRequest, tuning_keys


@click.command(name="compile", cls=Command, axes=(OPERATIONS_AXIS,))
@options(TARGET, SHAPES, KERNELS, ASKED_OF_ANY_KIND, JOBS, CLUSTER)
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Candidates of each operation.")
@JSON
def compile_command(**values: Any) -> None:
    """Compile the candidates that the cost model ranks best on a shape set. Needs no GPU; resumes.

    Operations on rows have sizes of their own.
    """
    operations, shapes = asked_of_any_kind(values), load_shape_set(values["shapes"])
    request = TuningRequest(shapes, operations, Patterns.parse(values["kernels"]), values["limit"], PRUNE)
    device = load_target(values["target"])
    with fleet_of(values["cluster"], values["cluster_tls"], values["jobs"], measures=False) as fleet:
        compilers = fleet.compilers if fleet else Processes(values["jobs"])
        artifacts, failures = compile_all(tuning_keys(request, device), device, Workplace(compilers=compilers))
    show(lambda: tables.artifact_facts(artifacts, failures), lambda: tables.artifacts_table(artifacts, failures))
    if failures:
        raise SystemExit(AotError.exit_code)
