"""The kinds that there are, and what is found in all of them: operations by tag, problems and kernels in files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from aot.core.constraints import Form, Label
from aot.core.errors import OperationError
from aot.core.strict_json import DecodeError, decode, shown
from aot.core.work import AnyKey, AnyOperation, AnyProblem
from aot.kinds.gemm.kind import GEMM
from aot.kinds.kind import Kind
from aot.kinds.rows.kind import ROWS

AnyKind: TypeAlias = Kind[AnyProblem, AnyKey]

KINDS: Mapping[str, AnyKind] = MappingProxyType({kind.name: kind for kind in (GEMM, ROWS)})
"""By name, in the order of lists of operations of all kinds."""

_OWN: Mapping[str, AnyOperation] = MappingProxyType({x.tag: x for kind in KINDS.values() for x in kind.own_operations})


@cache
def all_operations() -> Mapping[str, AnyOperation]:
    """Return the operations of all kinds by tag, those of other packages too.

    Raises:
        OperationError: some cannot be loaded, or two have one tag.
    """
    found: dict[str, AnyOperation] = {}
    for operation in (x for kind in KINDS.values() for x in kind.operations):
        if operation.tag in found:
            raise OperationError(f"the tag {operation.tag!r} is that of two operations; uninstall the package of one")
        found[operation.tag] = operation
    return MappingProxyType(found)


def kind_of(operation: AnyOperation) -> AnyKind:
    """Return an operation's kind."""
    return KINDS[operation.kind]


def kind_named(name: str) -> str:
    """Return the name of a kind, as a file holds it.

    Raises:
        DecodeError: it is none.
    """
    if name in KINDS:
        return name
    raise DecodeError(f"expected one of {', '.join(KINDS)}, got {shown(name)}")


def read_operation(tag: str) -> AnyOperation:
    """Return the operation of a tag that a file holds.

    Raises:
        DecodeError: there is none.
    """
    found = _OWN.get(tag) or all_operations().get(tag)
    if found is None:
        got = f"got {shown(tag)}; that of another package is known where it is installed"
        raise DecodeError(f"expected the tag of an operation, such as {next(iter(_OWN))}, {got}")
    return found


Catalogued: TypeAlias = Annotated[AnyOperation, Form(Label, read_operation)]
"""An operation of any kind, as a field of a file."""


def read_kernel(value: object) -> Any:
    """Return the compiled kernel that a file holds, of its operation's kind.

    Raises:
        DecodeError: it is none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("operation"), str):
        raise DecodeError(f"expected an object of a kernel with its operation, got {shown(value)}")
    return decode(kind_of(read_operation(value["operation"])).kernel_type, value)
