"""Options that several commands have, and what an option or a command checks before any work is done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from aot.cli.completion import complete_shapes, complete_targets
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.operation import ELEMENTS, Layout, Operation
from aot.core.whole_file import check_folder, check_output
from aot.kinds.named_operations import HELP, NamedOperations, all_named_operations, named_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aot.core.work import AnyOperation

Decorated = TypeVar("Decorated", bound="Callable[..., Any] | click.Command")


class Decorator(Protocol):
    """What puts an option on a command."""

    def __call__(self, function: Decorated, /) -> Decorated:
        """Put it on."""


RECORDS = Path(__file__).parents[1] / "records"
SELECTIONS = Path("build/selections")
"""Where `aot select` writes, below the working directory."""

MAX_HELDOUT_REGRET = (0.03, 1.0)
"""Mean and worst bucketing loss, on problems that were held out, up to which `aot build` builds.

Source: over the 502 problems of other (n, k) that the committed H200 selection is scored on, the mean is 2.0%, the
worst 86%, at k 32.
"""


class Option(click.Option):
    """An option that may have a meaning in some modes of its command only (see `Command`)."""

    def __init__(self, *names: Any, only: Collection[str] = (), **attributes: Any) -> None:
        """Make an option.

        Args:
            names: as click.Option takes them.
            only: the modes in which it means something; none for all of them.
            attributes: as click.Option takes them.
        """
        super().__init__(*names, **attributes)
        self.only = tuple(only)


def option(*names: str, only: Collection[str] = (), **attributes: Any) -> Decorator:
    """Make the decorator of an `Option`."""
    return click.option(*names, cls=Option, only=only, **attributes)


def is_given(context: click.Context, name: str) -> bool:
    """Say whether a parameter was given, rather than left at its default."""
    source = context.get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)


@dataclass(frozen=True)
class Axis:
    """A choice that decides which options mean something: its modes, and what tells the mode by the values.

    A mode is named as it stands in a sentence: `with --bundle`.
    """

    modes: tuple[str, ...]
    mode: Callable[[Mapping[str, Any]], str]


class Command(click.Command):
    """A command that refuses the options which mean nothing in the modes that it is called in."""

    def __init__(self, *arguments: Any, axes: tuple[Axis, ...], **attributes: Any) -> None:
        """Make a command of what click.Command takes, and of the choices between its modes."""
        super().__init__(*arguments, **attributes)
        self.axes = axes

    def invoke(self, ctx: click.Context) -> Any:
        """Check the options that were given against the modes, and run."""
        for axis in self.axes:
            mode = axis.mode(ctx.params)
            for parameter in self.params:
                only = [x for x in axis.modes if isinstance(parameter, Option) and x in parameter.only]
                if only and mode not in only and is_given(ctx, parameter.name or ""):
                    raise click.UsageError(means_nothing(as_given(parameter, ctx.params), mode, only), ctx)
        return super().invoke(ctx)


def as_given(parameter: click.Parameter, values: Mapping[str, Any]) -> str:
    """Return the name that an option was given by: of one that has a name for each answer, such as --curve, its own."""
    is_off = parameter.secondary_opts and values[parameter.name or ""] is False
    return (parameter.secondary_opts if is_off else parameter.opts)[-1]


def means_nothing(name: str, mode: str, only: list[str]) -> str:
    """Say that an option means nothing in a mode, and in which it does."""
    others = [x for x in only if name not in x.split()]
    advice = f"leave it out, or use it {' or '.join(others)}" if others else "leave one of the two out"
    return f"{name} means nothing {mode}; {advice}"


class FiniteFloat(click.FloatRange):
    """A number within a range; `nan` and the infinities are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class _OutputFile(click.ParamType[Path]):
    """A file to write, tried before anything else is done."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        del param, ctx
        return check_output(Path(value))


class _OutputFolder(click.ParamType[Path]):
    """A folder to put files into, tried before anything else is done."""

    name = "DIRECTORY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        del param, ctx
        return check_folder(Path(value))


OUTPUT_FILE, OUTPUT_FOLDER = _OutputFile(), _OutputFolder()


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
TARGET_HELP = "Device and host; see `aot targets`."
SHAPES_HELP = "Shape set: a shipped name or a TOML file."
TARGET = option("--target", default="thor", show_default=True, help=TARGET_HELP, shell_complete=complete_targets)


def shapes_option(*, only: Collection[str] = (), text: str = SHAPES_HELP) -> Decorator:
    """Make the option --shapes, which may have a meaning in some modes only."""
    return option(
        "--shapes", only=only, default="representative", show_default=True, help=text, shell_complete=complete_shapes
    )


SHAPES = shapes_option()


def kernels_option(*, only: Collection[str] = ()) -> Decorator:
    """Make the option --kernels, which may have a meaning in some modes only."""
    text = "Patterns on candidate names, separated by commas; a leading - excludes: 'sm100_*,-*256x256*'."
    return option("--kernels", only=only, default="", help=text)


KERNELS = kernels_option()
DTYPES = tuple(element.value for element in ELEMENTS)
LAYOUTS = tuple(layout.value for layout in Layout)
EPILOGUES = tuple(epilogue.value for epilogue in Epilogue)

NAMED_OPERATIONS, CROSSED_OPERATIONS = "with --operations", "without --operations"


def _asked_by(values: Mapping[str, Any]) -> str:
    return NAMED_OPERATIONS if values["operations"] else CROSSED_OPERATIONS


OPERATIONS_AXIS = Axis((NAMED_OPERATIONS, CROSSED_OPERATIONS), _asked_by)
"""The one rule: what --operations names, or the products whose operands and D are of one type, by --dtype, --layout and
--epilogue."""


class _Operations(click.ParamType[tuple[Operation, ...]]):
    """Operations by tag, pattern or preset."""

    name = "TAG,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Operation, ...]:
        del param, ctx
        return named_operations(value) if isinstance(value, str) else value


class _AnyOperations(click.ParamType[NamedOperations]):
    """Operations of any kind by tag, pattern or preset."""

    name = "TAG,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NamedOperations:
        del param, ctx
        return all_named_operations(value) if isinstance(value, str) else value


class _AllOperations(click.ParamType[NamedOperations]):
    """Operations of any kind by tag, pattern or preset; there is a product among them."""

    name = "TAG,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NamedOperations:
        del param, ctx
        if isinstance(value, NamedOperations):
            return value
        named_operations(value)  # which refuses what names no product
        return all_named_operations(value)


OPERATIONS_TYPE = _Operations()
ANY_OPERATIONS_TYPE = _AnyOperations()
ALL_OPERATIONS_TYPE = _AllOperations()
OPERATIONS = option("--operations", type=OPERATIONS_TYPE, help=HELP)
ANY_OPERATIONS = option("--operations", type=ANY_OPERATIONS_TYPE, help=f"{HELP} By default all.")

_ONE_DTYPE = option(
    "--dtype", only=[CROSSED_OPERATIONS], type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True
)
_ONE_LAYOUT = option(
    "--layout",
    only=[CROSSED_OPERATIONS],
    type=click.Choice(list(LAYOUTS)),
    default="kk",
    show_default=True,
    help="Contiguous mode of A and of B; kk is torch's linear.",
)
_ONE_EPILOGUE = option(
    "--epilogue",
    only=[CROSSED_OPERATIONS],
    type=click.Choice(list(EPILOGUES)),
    default="none",
    show_default=True,
    help="What is done between the accumulator and the rounding of D.",
)


def asked_of_any_kind(values: Mapping[str, Any]) -> tuple[AnyOperation, ...]:
    """Return the operations that a command is asked for by `ASKED_OF_ANY_KIND`.

    Raises:
        click.UsageError: the catalogue has none of the types, layout and epilogue.
    """
    named: NamedOperations | None = values["operations"]
    if named:
        return named.operations
    try:
        return (Operation.of(ElementType(values["dtype"]), Layout(values["layout"]), Epilogue(values["epilogue"])),)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def several(name: str, choices: Sequence[str], text: str) -> Decorator:
    """Make an option, of those that --operations stands in the place of, that may be given again."""
    choice = click.Choice(list(choices))
    return option(name, f"{name[2:]}s", only=[CROSSED_OPERATIONS], multiple=True, type=choice, help=text)


VERBOSE = option("--verbose", is_flag=True, help="Echo the commands that are run.")


def jobs_option(*, only: Collection[str] = ()) -> Decorator:
    """Make the option --jobs, which may have a meaning in some modes only."""
    return option("--jobs", only=only, type=click.IntRange(1, 4096), help="Compiler processes; by default one a core.")


JOBS = jobs_option()


def calibration_option(*, only: Collection[str] = ()) -> Decorator:
    """Make the option --calibration, which may have a meaning in some modes only."""
    text = "The cost model's constants, as `aot calibrate` writes them."
    return option("--calibration", only=only, type=click.Path(path_type=Path), help=text)


CALIBRATION = calibration_option()


def options(*options: Decorator) -> Decorator:
    """Join options into one decorator, in the given order."""

    def apply(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


ASKED_OF_ANY_KIND = options(
    option("--operations", type=ANY_OPERATIONS_TYPE, help=HELP), _ONE_DTYPE, _ONE_LAYOUT, _ONE_EPILOGUE
)
"""How a command is told of an operation, or of several of any kind by --operations: see `asked_of_any_kind`."""
