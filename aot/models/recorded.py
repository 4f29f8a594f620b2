"""A program's products, as the recorder counted them, become a shape set with counts."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aot.core.constraints import MAX_COUNT, MAX_EXTENT, one_line
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import OutputError, ShapeFileError
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Layout, Operation
from aot.models import recorder

GPU = "cuda"
MAX_LEFT_OUT = 20
"""Most lines about products that no operation computes."""


@dataclass(frozen=True, order=True)
class Product:
    """A product that a program computed, or a batch or groups of them; of groups m is what one is expected to have."""

    device: str
    a: str
    b: str
    d: str
    layout: str
    has_bias: bool
    grouping: str
    groups: int
    m: int
    n: int
    k: int
    epilogue: str = "none"
    """Of what a wheel computed; of torch's products a bias alone is seen."""
    has_blocks: bool = False
    """Whether factors were of blocks."""
    factor: str = ""
    """The element type of narrow factors of blocks, of formats such as NVFP4."""

    @property
    def text(self) -> str:
        """Say what it is, in a line."""
        groups = "" if self.grouping == Grouping.DENSE.value else f"{self.grouping}, {self.groups} x "
        with_what = "" if self.epilogue == Epilogue.NONE.value else f" with {self.epilogue}"
        with_what += " and factors of blocks" if self.has_blocks else ""
        with_what += f" and factors of {self.factor}" if self.factor else ""
        sizes = f"{groups}m {self.m} n {self.n} k {self.k}"
        return one_line(f"{self.a} x {self.b} to {self.d}{with_what}, layout {self.layout}: {sizes}")


END_S = 1.0
"""How long a program has to end that was interrupted, before what it wrote so far is taken."""


def run_recorded(command: Sequence[str], folder: Path) -> int:
    """Run a program with the recorder in front of its path; return its exit code, negative for a signal.

    A Ctrl-C reaches the program from the terminal too; it ends this wait, and nothing else.

    Raises:
        OutputError: the program cannot be started.
    """
    (folder / "sitecustomize.py").write_bytes(Path(recorder.__file__).read_bytes())
    paths = [str(folder), *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), recorder.FOLDER: str(folder)}
    try:
        process = subprocess.Popen(list(command), env=env)
    except OSError as error:
        raise OutputError(f"cannot run {command[0]}: {error.strerror}; give a program and its arguments") from error
    try:
        return process.wait()
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(END_S)
        process.kill()
        return process.wait()


def read_counts(folder: Path) -> Counter[Product]:
    """Add up what the processes of a program wrote.

    Raises:
        ShapeFileError: a file is not what the recorder writes.
    """
    counts: Counter[Product] = Counter()
    for path in sorted(folder.glob("*.json")):
        try:
            for *values, count in json.loads(path.read_text(encoding="utf-8")):
                counts[Product(*values)] += count
        except (ValueError, TypeError) as error:
            raise ShapeFileError(f"{path}: {error}; expected the recorder's counts; record again") from error
    return counts


def read_uncounted(folder: Path) -> Counter[str]:
    """Add up how often the recorder could not count what an operator computed, by the operator.

    Raises:
        ShapeFileError: a file is not what the recorder writes.
    """
    found: Counter[str] = Counter()
    for path in sorted(folder.glob(f"*{recorder.UNCOUNTED}")):
        try:
            found.update(
                {str(name): int(count) for name, count in json.loads(path.read_text(encoding="utf-8")).items()}
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise ShapeFileError(f"{path}: {error}; expected the recorder's counts; record again") from error
    return found


def _narrow_factor(operation: Operation) -> str:
    """Return the element type of an operation's factors in atoms; empty where it has none."""
    scale = operation.a.scale
    return "" if scale is None or scale.layout is not FactorLayout.ATOMS else scale.element.value


def _operation(product: Product) -> Operation | None:
    """Return the operation that computes a product; None where the catalogue has none."""
    if not all(1 <= x <= MAX_EXTENT for x in (product.m, product.n, product.k, product.groups)):
        return None
    names = {x.value for x in ElementType}
    if not {product.a, product.b, product.d} <= names:
        return None
    types = ElementType(product.a), ElementType(product.b), ElementType(product.d)
    found = [
        x
        for x in Operation
        if x.grouping.value == product.grouping
        and (x.types.a, x.types.b, x.types.d) == types
        and x.layout == Layout(product.layout)
        and not x.types.is_fast
        and (x.types.factors is FactorLayout.BLOCK) == product.has_blocks
        and _narrow_factor(x) == product.factor
    ]
    plain = next((x for x in found if x.epilogue.value == product.epilogue), None)
    alike = [x for x in found if plain is None or x.types == plain.types]
    biased = next((x for x in alike if x.epilogue is Epilogue.BIAS), None)
    adds_bias_alone = product.has_bias and product.epilogue == Epilogue.NONE.value
    return biased if adds_bias_alone and biased is not None else plain


def recorded_text(counts: Mapping[Product, int], command: str) -> tuple[str, list[str]]:
    """Return the shape set, as TOML, and what is to be said of it.

    Only products on a GPU count, or where there was none, those on the CPU.

    Args:
        counts: how often each product was computed.
        command: what was run, for the head of the file.

    Raises:
        ShapeFileError: there is no product that an operation computes.
    """
    notes = []
    on_gpu = {x: count for x, count in counts.items() if x.device == GPU}
    if counts and not on_gpu:
        notes.append("no product was on a GPU; those on the CPU are taken instead")
    taken = on_gpu or counts
    rows: dict[tuple[Operation, int, int, int], Counter[int]] = {}
    left: Counter[str] = Counter()
    for product, count in taken.items():
        operation = _operation(product)
        if operation is None:
            left[product.text] += count
        else:
            key = (operation, product.n, product.k, product.groups)
            rows.setdefault(key, Counter())[product.m] += count
    if not rows:
        what = (
            f"{sum(counts.values())} products, none of an operation that kernels are made for"
            if counts
            else "no product"
        )
        raise ShapeFileError(
            f"{what} of torch was seen; expected some, of bfloat16 or float16 say; run a program that computes by "
            "torch, with work for its model"
        )
    for text, count in left.most_common(MAX_LEFT_OUT):
        notes.append(f"left out, since no operation computes it: {text}, {count} times")
    if len(left) > MAX_LEFT_OUT:
        notes.append(f"left out besides: {len(left) - MAX_LEFT_OUT} further products")
    head = [
        f"# The products of: {one_line(command)}",
        "# `counts` says how often each m was computed; aot select weighs by it.",
    ]
    return "\n".join(["\n".join(head) + "\nversion = 1\n", *_models(rows)]), notes


def _models(rows: Mapping[tuple[Operation, int, int, int], Counter[int]]) -> Iterable[str]:
    for (operation, n, k, groups), found in sorted(rows.items(), key=lambda x: (x[0][0].position, *x[0][1:])):
        numbers = sorted(found)
        stated = "" if operation.grouping is Grouping.DENSE else f"num_groups = [{groups}]\n"
        yield (
            f'[[model]]\nname = "recorded"\noperations = ["{operation.tag}"]\n{stated}'
            f'weights = [{{ name = "{n} x {k}", n = {n}, k = {k} }}]\n'
            f"m = {numbers}\ncounts = {[min(found[m], MAX_COUNT) for m in numbers]}\n"
        )
