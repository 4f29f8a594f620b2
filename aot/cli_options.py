"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.problem import Dtype, Layout

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = Path(__file__).parent / "records"
SELECTIONS = Path("build/selections")
"""Where `aot select` writes, below the working directory."""

MAX_HELDOUT_REGRET = (0.02, 0.20)
"""Mean and worst cost of rounding, on problems that were held out, up to which `aot build` builds."""


def regrets_text(regrets: tuple[float, float]) -> str:
    """Write a mean and a worst regret as the command line takes them: `2%,25%`."""
    return ",".join(f"{100 * regret:g}%" for regret in regrets)


class _Regrets(click.ParamType[tuple[float, float]]):
    """A mean and a worst regret: `2%,10%`, or fractions; `none` where there is no limit."""

    name = "MEAN,WORST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == "none":
            return (float("inf"), float("inf"))
        try:
            mean, worst = (float(x.removesuffix("%")) / (100 if x.endswith("%") else 1) for x in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a mean and a worst regret, such as 2%,10%", param, ctx)
        if not 0 <= mean <= worst:
            self.fail(f"{value!r}: the mean must be at least 0 and at most the worst", param, ctx)
        return (mean, worst)


REGRETS = _Regrets()
TARGET = click.option("--target", default="thor", show_default=True, help="Device and host; see `aot targets`.")
SHAPES = click.option(
    "--shapes", default="representative", show_default=True, help="Shape set: a shipped name or a TOML file."
)
KERNELS = click.option(
    "--kernels",
    default="",
    help="Patterns on candidate names, separated by commas; a leading - excludes: 'sm100_*,-*256x256*'.",
)
DTYPE = click.option(
    "--dtype", type=click.Choice([dtype.value for dtype in Dtype]), default="bfloat16", show_default=True
)
CALIBRATION = click.option(
    "--calibration", type=click.Path(path_type=Path), help="The cost model's constants, as `aot calibrate` writes them."
)
LAYOUT = click.option(
    "--layout",
    type=click.Choice([layout.value for layout in Layout]),
    default="kk",
    show_default=True,
    help="Contiguous mode of A and of B; kk is torch's linear.",
)
JOBS = click.option("--jobs", type=click.IntRange(1), help="Compiler processes; by default one a core.")
VERBOSE = click.option("--verbose", is_flag=True, help="Echo the commands that are run.")


def options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Join options into one decorator, in the given order."""

    def apply(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return apply
