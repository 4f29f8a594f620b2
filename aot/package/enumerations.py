"""The enumerations that C++ and the wheel's Python share with the toolchain, as the templates write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.dispatch import Tier
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.operation import Layout
from aot.core.signature import PART_WORDS, Argument
from aot.core.tile_order import NUM_ORDERS, order_name
from aot.core.weight_format import FORMATS, PackedLayout, WeightFormat
from aot.kinds.rows.function import OWN_FUNCTIONS
from aot.kinds.rows.operation import RowScale
from aot.kinds.rows.signature import RowArgument, RowFlag
from aot.package.call_fields import FIELDS, OPERANDS, OPTIONS, PLAIN, PYTHON_NAMES, READ, WRITTEN, CallFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from enum import Enum

    from aot.kinds.rows.function import RowFunction

_NOT_IN_MEMORY = (ElementType.TFLOAT32,)
"""What no operand of a call is of: TF32 is float32 there."""
ELEMENTS = tuple(x for x in ElementType if x not in _NOT_IN_MEMORY)
"""By their numbers in the library."""
ARGUMENTS = tuple(dict.fromkeys([*(x.value for x in Argument), *(x.value for x in RowArgument)]))
"""What kernels of either kind take, by their numbers in the library."""


@dataclass(frozen=True)
class _Enumeration:
    """An `enum class` of C++, with the words of its enumerators by number."""

    name: str
    words: tuple[str, ...]
    names: tuple[str, ...]
    """What the enumerators are named by, where the words are no names of ours."""


@dataclass(frozen=True)
class _Fields:
    """What a function hands over: fields by name."""

    function: str
    fields: tuple[str, ...]
    num_plain: int
    """Of how many a call may be that has nothing else."""


@dataclass(frozen=True)
class _PackedForm:
    """A format of packed weights, as the library knows it."""

    name: str
    run_k: int
    """Elements along k of which a row of the bytes has a whole number."""
    run_bytes: int
    tile_rows: int
    """Rows of the weight of which the bytes have a whole number."""
    rows_of_atoms: int
    """Rows of the bytes that the factors of 128 rows of the weight take, where they lie in atoms; else 0."""
    quantum: int
    has_row_factors: bool

    @staticmethod
    def of(form: WeightFormat) -> _PackedForm:
        """Take a format's facts."""
        layout = PackedLayout(form)
        sizes = layout.run_k, layout.run_bytes, layout.tile_rows, layout.rows_of_atoms
        return _PackedForm(form.name, *sizes, form.quantum, form.has_row_factors)


def argument_bits(signature: Iterable[Argument | RowArgument]) -> int:
    """Return the bits of arguments, as the library has those of an operation."""
    return sum(1 << ARGUMENTS.index(argument.value) for argument in signature)


def _enumeration(name: str, values: Iterable[str]) -> _Enumeration:
    words = tuple(values)
    return _Enumeration(name, words, words)


def _of(members: type[Enum]) -> _Enumeration:
    return _enumeration(members.__name__, (str(x.value) for x in members))


def _enumerations(functions: Sequence[RowFunction]) -> tuple[_Enumeration, ...]:
    elements = _Enumeration("Element", tuple(str(x.value) for x in ELEMENTS), tuple(x.name for x in ELEMENTS))
    plain = tuple(_of(x) for x in (Epilogue, Grouping, SplitK))
    scales = _enumeration("Scale", ("none", *(x.value for x in FactorLayout)))
    layouts = _enumeration("Layout", (x.value for x in sorted(Layout, key=lambda x: x.code)))
    weights = _enumeration("WeightFormat", ("none", *(x.name for x in FORMATS)))
    return (
        elements,
        scales,
        weights,
        *plain,
        _enumeration("RowFunction", (x.name for x in functions)),
        _of(RowScale),
        layouts,
        _enumeration("Argument", ARGUMENTS),
        _enumeration("Product", FIELDS),
    )


def enumeration_variables(functions: Sequence[RowFunction] = OWN_FUNCTIONS) -> dict[str, object]:
    """Return what the templates write of enumerations and of calls.

    Args:
        functions: those of rows, by their numbers: ours come first, whether a library has operations of them or not.
    """
    fields = [_Fields(function, found, PLAIN.get(function, len(found))) for function, found in FIELDS.items()]
    return {
        "enumerations": _enumerations(functions),
        "element_types": ELEMENTS,
        "scale_block": SCALE_BLOCK,
        "weight_formats": [_PackedForm.of(x) for x in FORMATS],
        "row_flags": tuple(RowFlag),
        "call_flags": tuple(CallFlag),
        "all_call_flags": sum(CallFlag),
        "operands": OPERANDS,
        "operand_names": [PYTHON_NAMES.get(x, x) for x in OPERANDS],
        "options": OPTIONS,
        "call_fields": fields,
        "most_arguments": max(len(Argument), len(RowArgument)),
        "num_part_words": len(PART_WORDS),
        "most_fields": max(len(x.fields) for x in fields),
        "on_rows": [*(x.name for x in OWN_FUNCTIONS), "rows"],
        "row_functions": [x.name for x in functions],
        "read": READ,
        "written": WRITTEN,
        "python_names": PYTHON_NAMES,
        "epilogues": [x.value for x in Epilogue],
        "layout_names": [x.value for x in sorted(Layout, key=lambda x: x.code)],
        "tiers": ["", *(x.name.lower() for x in Tier)],
        "tile_orders": [order_name(x) for x in range(1, NUM_ORDERS)],
    }
