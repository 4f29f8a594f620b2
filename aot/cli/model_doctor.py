"""What `aot doctor MODEL` finds: how a target's wheel serves a model, Linear by Linear, and the next command."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aot.cli import tables
from aot.core.epilogue import Epilogue
from aot.core.errors import CandidateError, FormatError
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Layout, Operation
from aot.core.weight_format import NVFP4_ROWS
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS, row_operation
from aot.kinds.rows.function import QUANTIZE
from aot.kinds.rows.operation import RowScale
from aot.models.stored_format import APART, PLAIN
from aot.select.coverage import GENERAL, MEASURED, PREDICTED, REFUSED
from aot.select.score.diagnosis import Diagnosis, Layer, Served, diagnose
from aot.space.enumeration import fallback, has_tuned_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aot.cli.shapes import ConfiguredModel
    from aot.core.target import Target
    from aot.core.types import Types
    from aot.models.linears import Linear, Named
    from aot.models.stored_format import StoredFormat
    from aot.select.selection import Selection

STATES = {MEASURED: "native", PREDICTED: "native", GENERAL: "slow", REFUSED: "absent"}
SCALES = {FactorLayout.VECTOR: RowScale.ROW, FactorLayout.BLOCK: RowScale.BLOCK}
"""By the factors of narrow inputs: the scales of the operation on rows that rounds them."""
ROUNDED_EXPERTS = (Operation.NVFP4_NVFP4_KK_GROUPED_SWIGLU, Operation.NVFP4_BF16_KK_GROUPED)
"""The products of experts in NVFP4 whose inputs are rounded to it."""
PASSES = 4
"""Most numbers of rows of which the time of a pass through all Linears is shown."""


@dataclass(frozen=True)
class Pass:
    """What all Linears of a model take for some rows; times in microseconds."""

    m: int
    roofline_us: float
    """The least that the device can take."""
    time_us: float | None
    """The sum of what the table knows; None where it does not know all."""
    provenance: str
    """Measured where every product's time was measured, else predicted."""


@dataclass(frozen=True)
class ModelReport:
    """How a selection's table serves a model."""

    model: str
    stored: str
    """How the checkpoint's weights are stored; empty where they are of the type that is computed with."""
    target: str
    provenance: str
    layers: tuple[Diagnosis, ...]
    passes: tuple[Pass, ...]
    next: str

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the weights that have products."""
        return sum(x.layer.num_bytes for x in self.layers)

    def facts(self) -> dict[str, Any]:
        """Return what --json prints."""
        layers = [
            {
                **{key: getattr(x.layer, key) for key in ("name", "n", "k", "count")},
                "operation": x.layer.operation.tag if x.layer.operation else None,
                "state": state_of(x),
                "served": x.served,
            }
            for x in self.layers
        ]
        keys = ("model", "stored", "target", "provenance", "num_bytes", "passes", "next")
        return {**{key: getattr(self, key) for key in keys}, "layers": layers}

    @property
    def text(self) -> str:
        """Return what people read."""
        rows = [
            (x.layer.name, x.layer.n, x.layer.k, x.layer.count, _operation(x.layer), state_of(x), _why(x))
            for x in self.layers
        ]
        header = ("Linear", "n", "k", "count", "operation", "state", "")
        stored = f", stored as {self.stored}" if self.stored else ""
        others = "" if all(x.layer.operation for x in self.layers) else ", beside those that no kernel multiplies"
        size = f"{self.num_bytes / 1e9:.3g} GB of weights{others}"
        head = f"{self.model}{stored}, on {self.target} ({self.provenance}): {size}"
        return "\n\n".join([head, tables.table(header, rows), *self._passes(), f"next: {self.next}"])

    def _passes(self) -> list[str]:
        if not self.passes:
            return []
        rows = [(x.m, f"{x.roofline_us / 1e3:.3g} ms", _by_table(x)) for x in self.passes]
        return [tables.table(("m", "all Linears, at least", "by the table"), rows)]


def _by_table(found: Pass) -> str:
    return "no time known" if found.time_us is None else f"{found.time_us / 1e3:.3g} ms, {found.provenance}"


def state_of(found: Diagnosis) -> str:
    """Say in a word how a layer is served: native, slow or absent."""
    return STATES[found.worst]


def _operation(layer: Layer) -> str:
    return layer.operation.tag if layer.operation else "-"


def _why(found: Diagnosis) -> str:
    """Say what lies behind the word."""
    if not found.served:
        return found.layer.why_absent
    counts, total = Counter(x.answer for x in found.served), len(found.served)
    parts = [f"{counts[MEASURED]} of {total} m measured" if counts[MEASURED] else ""]
    parts.append(f"{counts[PREDICTED]} of {total} m by prediction" if counts[PREDICTED] else "")
    for kind in (GENERAL, REFUSED):
        those = [x for x in found.served if x.answer == kind]
        if those:
            parts.append(f"{counts[kind]} of {total} m {_of_those(those)}")
    return "; ".join(x for x in parts if x)


def _of_those(those: Sequence[Served]) -> str:
    """Say why products are slow or refused, and the worst factor of the slow ones."""
    worst = max(those, key=lambda x: (x.time_us or 0.0) / x.roofline_us)
    if worst.time_us is None:
        return f"refused: {worst.reason}"
    factor = worst.time_us / worst.roofline_us
    slow = f"by the general kernel {worst.kernel}, up to {factor:.0f}x the least time"
    return f"{slow} (m {worst.m}, predicted): {worst.reason}"


def report_of(model: ConfiguredModel, selection: Selection, target: Target, path: Path) -> ModelReport:
    """Say how a selection serves a model.

    Args:
        model: its Linears, and the rows that they meet.
        selection: kernels and table.
        target: the selection's device.
        path: the model's configuration, for the next command.
    """
    layers = [layer for x in model.linears for layer in _layers(model, x)]
    found = tuple(diagnose(selection, layers, target))
    return ModelReport(
        model.read.name,
        model.stored.label,
        target.name,
        str(selection.provenance),
        found,
        tuple(_passes(found)),
        _next(found, selection, model, target, path),
    )


def asked_of(model: ConfiguredModel) -> list[Operation]:
    """List the operations that a model's Linears ask for."""
    found = (layer.operation for x in model.linears for layer in _layers(model, x))
    return [x for x in dict.fromkeys(found) if x is not None]


def _layers(model: ConfiguredModel, x: Linear) -> Iterator[Layer]:
    """Say what is asked of a table for Linears of one size, of those in each format by itself."""
    formats: dict[StoredFormat, list[Named]] = defaultdict(list)
    for named in x.names:
        for form, count in model.stored.formats_of(named).items():
            formats[form].append(replace(named, count=count))
    for form, names in formats.items():
        yield _layer(model, replace(x, names=tuple(names)), form)


def _layer(model: ConfiguredModel, x: Linear, form: StoredFormat) -> Layer:
    m = model.ladder.of(x.rows)
    if form == PLAIN:
        epilogue = Epilogue.BIAS if x.has_bias else Epilogue.NONE
        return Layer(x.name, x.n, x.k, x.count, m, Operation.of(model.element, epilogue=epilogue))
    types = form.types_for(model.element)
    if types is not None and types.weight is not None:
        try:
            types.weight.check(x.n, x.k)
        except FormatError as error:
            return Layer(x.name, x.n, x.k, x.count, m, None, str(error))
    found = _of_types(types, Grouping.GROUPED if x.rows.is_expert else Grouping.DENSE)
    why_absent = form.why_absent if types is None else f"no operation multiplies groups of {types.tag}"
    return Layer(x.name, x.n, x.k, x.count, m, found, why_absent)


def _of_types(types: Types | None, grouping: Grouping, epilogue: Epilogue = Epilogue.NONE) -> Operation | None:
    """Return the product of element types; where they have factors, the plain one takes a bias or none."""
    asked = (types, Layout.KK, epilogue, grouping)
    return next((x for x in Operation if (x.types, x.layout, x.epilogue, x.grouping) == asked), None)


def _passes(found: Sequence[Diagnosis]) -> Iterator[Pass]:
    """Sum up the products of all Linears, for some of the m that all of them meet, and whose times are known."""
    if REFUSED in {x.worst for x in found}:
        return
    meets = [{y.m: y for y in x.served} for x in found]
    common = sorted(set[int].intersection(*map(set, meets)))
    known = [m for m in common if all(served[m].time_us is not None for served in meets)] or common[:1]
    for m in known[:: max(1, -(-len(known) // PASSES))]:
        those = [(x.layer.count, served[m]) for x, served in zip(found, meets, strict=True)]
        times = [count * x.time_us for count, x in those if x.time_us is not None]
        least = sum(count * x.roofline_us for count, x in those)
        provenance = MEASURED if {x.answer for _, x in those} == {MEASURED} else PREDICTED
        yield Pass(m, least, sum(times) if len(times) == len(those) else None, provenance)


def _next(found: Sequence[Diagnosis], selection: Selection, model: ConfiguredModel, target: Target, path: Path) -> str:
    """Say which wheel mends what is not native and measured."""
    words = shlex.join(["--config", str(path), "--target", selection.target])
    asked = [x for x in dict.fromkeys(x.layer.operation for x in found) if x is not None]
    untuned = [x for x in asked if not has_tuned_kernels(x, target)]
    if untuned or not all(x.served or x.layer.why_absent == APART.why_absent for x in found):
        wheel = f"the wheel of `aot wheel {words}`"
        why = f": {target.name} has {_has_of(untuned, target)}" if untuned else ""
        return f"load the checkpoint in 16 bits, as {model.element.value}, whose products {wheel} has{why}"
    if all(x.types.weight is None and x.types.factors is None for x in asked) or model.stored.is_packed:
        return _next_wheel(found, selection, asked, words, model, target)
    folder = path if path.is_dir() else path.parent
    packing = shlex.join(["aot", "pack", str(folder)])
    wheel = _next_wheel(found, selection, asked, words, model, target)
    if not any(_may_round_experts(x, model, target) for x in asked):
        return f"{wheel}; and {packing}"
    rows = shlex.join(["--format", NVFP4_ROWS.name])
    return (
        f"{wheel}; and {packing}; or, for experts whose inputs are rounded to NVFP4 by the checkpoint's input_scale, "
        f"{packing} {rows}, and aot doctor of what that writes"
    )


def _has_of(operations: Sequence[Operation], target: Target) -> str:
    """Say what a target has of operations without tuned kernels: the general kernel, or none where it is unable."""
    found: dict[str, list[str]] = defaultdict(list)
    for operation in operations:
        try:
            fallback(operation, target)
            found["the slow general kernel alone"].append(operation.tag)
        except CandidateError:
            found["no kernel"].append(operation.tag)
    return ", and ".join(f"{what} for {', '.join(tags)}" for what, tags in found.items())


def _gate_of(model: ConfiguredModel) -> str:
    return "gpt_oss_mul" if model.read.model_type == "gpt_oss" else "silu_mul"


def _may_round_experts(operation: Operation, model: ConfiguredModel, target: Target) -> bool:
    """Say whether a target has products of a mixture's experts in NVFP4 with inputs that are rounded to it."""
    weight = operation.types.weight
    is_nvfp4 = operation.grouping is Grouping.GROUPED and weight is not None and weight.is_nvfp4
    return is_nvfp4 and _gate_of(model) == "silu_mul" and all(has_tuned_kernels(x, target) for x in ROUNDED_EXPERTS)


def _beside(operation: Operation, model: ConfiguredModel, target: Target) -> list[str]:
    """Return the operations that a Linear, or a mixture of experts, takes beside its product."""
    types, found = operation.types, []
    if operation.grouping is Grouping.GROUPED:
        gate = _gate_of(model)
        gated = _of_types(types, Grouping.GATHERED, Epilogue.SWIGLU) if gate == "silu_mul" else None
        gathered = gated or _of_types(types, Grouping.GATHERED)
        found += [gathered.tag] if gathered is not None else []
        found += [f"{types.d.tag}_{gate}"] if gated is None else []
        if types.weight is not None and types.weight.in_rows and _may_round_experts(operation, model, target):
            found += [x.tag for x in (*ROUNDED_EXPERTS, row_operation("bf16_nvfp4_quantize"))]
    if types.weight is None and types.factors in SCALES:
        asked = (types.d, QUANTIZE, types.a, SCALES[types.factors])
        found += [x for x in OWN_ROW_OPERATIONS if (x.x, x.function, x.y, x.scale) == asked]
    return found


def _next_wheel(
    found: Sequence[Diagnosis],
    selection: Selection,
    asked: Sequence[Operation],
    words: str,
    model: ConfiguredModel,
    target: Target,
) -> str:
    has = {x.operation.call for x in selection.table.sections}
    if any(x.call not in has for x in asked):
        tags = dict.fromkeys(y for x in asked for y in (x.tag, *_beside(x, model, target)))
        return f"aot build --target {selection.target} --operations {','.join(tags)}"
    worst = {x.worst for x in found}
    if PREDICTED in worst:
        return f"aot wheel {words} --on ssh://user@host, which measures what is predicted"
    return f"aot wheel {words}" if worst - {MEASURED} else f"aot build --target {selection.target}"
