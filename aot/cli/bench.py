"""The command `aot bench`: a finished wheel beside torch or cuBLAS on this machine, and the same again elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.completion import complete_shapes
from aot.cli.options import OPERATIONS_TYPE, OUTPUT_FILE, SHAPES_HELP, Axis, Command, option
from aot.cli.output import JSON, show, tell
from aot.core.constraints import MAX_EXTENT
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.progress import waiting
from aot.core.whole_file import write_whole
from aot.kinds.named_operations import HELP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.bench.compare import Comparison, Ratio
    from aot.bench.receipt import Receipt

MEASURED, REPEATED, CHECKED = "without --repeat and --check", "with --repeat", "with --check"
OF_SHAPES, OF_SIZES = "with --shapes", "without --shapes"
DEFAULT_MODULE = "aot_gemm"
DEFAULT_SIZES = tuple(
    (m, n, k) for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)) for m in (1, 16, 128, 2048)
)
"""The four Linears of a Llama 3.1 of 8B parameters, joined as servers do, when decoding one sequence and 16, and in
prompts. Source: aot/architectures/public.toml, llama-3.1-8b."""
_SIZE = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)x([1-9][0-9]*)")


def _mode(values: Mapping[str, Any]) -> str:
    if values["check"]:
        return CHECKED
    return REPEATED if values["repeat"] else MEASURED


def _named(values: Mapping[str, Any]) -> str:
    return OF_SHAPES if values["shapes"] else OF_SIZES


class _Size(click.ParamType[tuple[int, int, int]]):
    """The sizes of a product: MxNxK."""

    name = "MxNxK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        if not isinstance(value, str):
            found: tuple[int, int, int] = value
            return found
        match = _SIZE.fullmatch(value)
        if match is None or max(map(int, match.groups())) > MAX_EXTENT:
            self.fail(f"{value!r} is not three sizes such as 16x4096x4096, m by n by k", param, ctx)
        m, n, k = map(int, match.groups())
        return m, n, k


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def receipt_table(receipt: Receipt) -> str:
    """Show what a receipt says, a line for each product, then one for each operation."""
    from aot.bench.compare import speedup

    rows = [
        (
            x.problem.name,
            x.kernel,
            f"{median(x.wheel_us):.2f}",
            f"{median(x.library_us):.2f}" if x.library_us else "",
            _ratio(speedup(x)),
        )
        for x in receipt.products
    ]
    library = next((x.library for x in receipt.products if x.library), "no library")
    head = ("product", "the wheel's kernel", "wheel us", f"{library} us", "library / wheel, by rounds")
    machine, wheel = receipt.machine.conditions, receipt.wheel
    of_wheel = f"{wheel.package} {wheel.version}, table {wheel.table}: {wheel.table_reason}"
    of_device = f"{machine.device}, {machine.num_sms} SMs, driver {machine.driver}"
    clocks = [str(x or "not told") for x in (machine.sm_clock_mhz, receipt.machine.sm_clock_mhz_after)]
    state = f"power {machine.power_mode or 'not told'}, SM clock in MHz {clocks[0]}, at the end {clocks[1]}"
    lines = [of_wheel, f"{of_device}, {state}; {receipt.date}", tables.table(head, rows), *_of_operations(receipt)]
    return "\n".join(lines)


def _of_operations(receipt: Receipt) -> list[str]:
    """Say what each operation is in the mean, where a library was timed."""
    from aot.bench.summary import SLOWER, speeds

    found = speeds(receipt)
    head = ("operation", "products", "library / wheel, geometric mean", f"below {SLOWER}", "least")
    rows = [(x.operation.tag, x.num_products, f"{x.geomean:.3f}", x.num_slower, f"{x.least:.3f}") for x in found]
    return ["", tables.table(head, rows)] if found else []


def comparison_text(found: Comparison) -> str:
    """Show how a repetition compares, a line for each product, then what differs beside."""
    verdicts = {None: "not known", True: "yes", False: "no"}
    rows = [
        (
            x.problem.name,
            f"{x.wheel_us_then:.2f}",
            f"{x.wheel_us_now:.2f}",
            _ratio(x.speedup_then),
            _ratio(x.speedup_now),
            verdicts[x.speedup_is_apart],
        )
        for x in found.rows
    ]
    head = ("product", "wheel us then", "now", "library / wheel then", "now", "beyond noise")
    others = [(x.what, x.then, x.now) for x in found.differences]
    beside = tables.table(("differs", "then", "now"), others) if others else "wheel, machine and library are the same"
    known = [x for x in found.rows if x.speedup_is_apart is not None]
    end = f"{len(found.apart)} of {len(known)} ratios differ by more than the noise of their rounds"
    return "\n\n".join([tables.table(head, rows), beside, end])


def _problems(values: Mapping[str, Any]) -> list[Problem]:
    if values["shapes"]:
        from aot.bench.products import products_of
        from aot.core.shape_set import load_shape_set

        return products_of(
            load_shape_set(values["shapes"]), values["operations"] or (), values["limit"], values["seed"]
        )
    sizes = values["sizes"] or DEFAULT_SIZES
    operations = values["operations"] or (Operation.BF16_KK,)
    return [Problem(operation, m, n, k) for operation in operations for m, n, k in sizes]


def _read(path: Path, signed_by: Path | None) -> tuple[Receipt, str | None]:
    """Read a receipt and check its hash and signature; return it and the key that signed it."""
    from aot.bench.receipt import read_receipt
    from aot.bench.signing import check_signature, public_key_of

    signer = None if signed_by is None else public_key_of(signed_by)
    receipt = read_receipt(path)
    return receipt, check_signature(receipt, str(path), signer)


def _said_of_signature(signer: str | None) -> str:
    unsigned = "not signed: its hash shows damage, and not who wrote it"
    return unsigned if signer is None else f"signed by the key {signer}"


def _measure(values: Mapping[str, Any], problems: list[Problem]) -> Receipt:
    from aot.bench.found_wheel import found_wheel, installed_folder
    from aot.bench.run import LibraryChoice, measure
    from aot.bench.signing import check_key, signed
    from aot.package.wheel import toolchain_version

    if values["key"] is not None:
        check_key(values["key"])
    path = values["wheel"] or installed_folder(DEFAULT_MODULE)
    with found_wheel(path) as wheel, waiting("measure") as at:
        found = measure(
            wheel,
            problems,
            f"aot {toolchain_version()}",
            choice=LibraryChoice(values["library"]),
            say=lambda text: click.echo(text, err=True),
            at=at,
        )
    return found if values["key"] is None else signed(found, values["key"])


def _write(path: Path | None, receipt: Receipt) -> None:
    from aot.bench.receipt import receipt_text

    if path is not None:
        write_whole(path, receipt_text(receipt))
        click.echo(f"wrote {path}, sha256 {receipt.sha256}", err=True)


@click.command(cls=Command, axes=(Axis((MEASURED, REPEATED, CHECKED), _mode), Axis((OF_SHAPES, OF_SIZES), _named)))
@option("--receipt", only=[MEASURED, REPEATED], type=OUTPUT_FILE, help="Write what was measured as a receipt.")
@option(
    "--repeat",
    only=[REPEATED],
    type=click.Path(path_type=Path),
    help="Measure what this receipt is of, and compare.",
)
@option("--check", only=[CHECKED], type=click.Path(path_type=Path), help="Check this receipt, and show it.")
@option(
    "--size",
    "sizes",
    only=[MEASURED, OF_SIZES],
    type=_Size(),
    metavar="MxNxK",
    multiple=True,
    help="A product's sizes, m by n by k; may be given again. By default the Linears of a Llama 3.1 of 8B, at four m.",
)
@option("--shapes", only=[MEASURED], help=f"{SHAPES_HELP} In the place of --size.", shell_complete=complete_shapes)
@option(
    "--limit",
    only=[MEASURED, OF_SHAPES],
    type=click.IntRange(1),
    help="Up to so many products of each operation, drawn from --shapes; by default all.",
)
@option("--seed", only=[MEASURED, OF_SHAPES], type=click.IntRange(0), default=0, show_default=True, help="Of the draw.")
@option(
    "--operations",
    only=[MEASURED],
    type=OPERATIONS_TYPE,
    help=f"{HELP} By default bf16_kk, or those of --shapes.",
)
@option(
    "--library",
    only=[MEASURED, REPEATED],
    type=click.Choice(["auto", "torch", "cublas", "none"]),
    default="auto",
    show_default=True,
    help="Whose product is timed beside the wheel's; auto: torch's where it can be used, else cuBLAS's.",
)
@option("--key", only=[MEASURED, REPEATED], type=click.Path(path_type=Path), help="Sign with this private key, PEM.")
@option(
    "--signed-by",
    only=[REPEATED, CHECKED],
    type=click.Path(path_type=Path),
    help="Refuse a receipt that this public key, PEM, did not sign.",
)
@click.argument("wheel", required=False, type=click.Path(path_type=Path, exists=True))
@JSON
def bench(**values: Any) -> None:
    """Time a wheel's products beside torch's or cuBLAS's on this GPU, and write a receipt.

    WHEEL is a wheel's file, or the folder of an installed package; by default the package aot_gemm of this Python. The
    products are checked, then timed in rounds in which wheel and library take turns, by the protocol of `aot tune`.
    Needs a driver; torch, or cuBLAS, is optional.

    A receipt has device, driver, clocks, power, the hashes of wheel and tables, and every round, with a hash of it all.
    docs/receipts.md says what hash and signature prove, and what not.
    """
    given = values["repeat"] or values["check"]
    if values["check"] and values["wheel"]:
        raise click.UsageError("WHEEL means nothing with --check; leave it out")
    then, signer = _read(given, values["signed_by"]) if given else (None, None)
    if then is not None:
        tell(f"{given}: as its hash says, {_said_of_signature(signer)}")
    if then is not None and values["check"]:
        show(lambda: {"receipt": then, "signed_by": signer}, lambda: receipt_table(then))
        return
    found = _measure(values, [x.problem for x in then.products] if then else _problems(values))
    _write(values["receipt"], found)
    if then is None:
        show(lambda: {"receipt": found}, lambda: receipt_table(found))
        return
    from aot.bench.compare import compare

    compared = compare(then, found)
    show(lambda: _comparison_facts(compared, found), lambda: comparison_text(compared))


def _comparison_facts(found: Comparison, receipt: Receipt) -> dict[str, object]:
    apart = [x.problem for x in found.apart]
    return {"receipt": receipt, "rows": found.rows, "differences": found.differences, "beyond_noise": apart}
