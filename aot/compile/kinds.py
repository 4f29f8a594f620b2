"""What a compiled kernel is described by, of each kind, and how the artifact store keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aot.compile.artifact import PTX_NAME, Artifact, CompileFailure, read_result
from aot.compile.sources import sha256_of
from aot.core.kernel import Kernel
from aot.core.operation import KIND as GEMM
from aot.families import any_family_of, family_of, rows_family_of, signature
from aot.kinds.registry import kind_of
from aot.kinds.rows.operation import KIND as ROWS
from aot.kinds.rows.operation import RowOperation

if TYPE_CHECKING:
    from pathlib import Path

    from aot.core.candidate import KernelKey, Resources
    from aot.core.target import Target
    from aot.core.work import AnyKey, AnyOperation
    from aot.kinds.rows.candidate import RowKernelKey

OBJECT_NAME = "kernel.o"
RESULT_NAME = "result.json"


def described(key: AnyKey, target: Target, path: Path) -> Any:
    """Describe a compiled object: a kernel of its kind.

    Args:
        key: what was compiled.
        target: the device.
        path: the object; the PTX lies beside it.

    Raises:
        CompileError: the object cannot run there.
    """
    from aot.compile.object_file import inspect

    resources = any_family_of(key.candidate).resources(key.candidate, key.operation, target)
    report = inspect(path, key.name, target, resources.num_threads)
    return kind_of(key.operation).kernel_type(
        name=key.name,
        operation=key.operation,
        candidate=key.candidate,
        object_sha256=report.sha256,
        object_bytes=report.num_bytes,
        entry_symbol=report.entry_symbol,
        init_symbol=report.init_symbol,
        load_symbol=report.load_symbol,
        registers=report.registers,
        spill_bytes=report.spill_bytes,
        ptx_sha256=sha256_of(path.with_name(PTX_NAME)),
        smem_bytes=resources.smem_bytes,
        num_threads=resources.num_threads,
        **_OWN[key.operation.kind](key, target, resources),
    )


def _of_product(key: KernelKey, target: Target, resources: Resources) -> dict[str, Any]:
    """Return what a kernel of products says beside what any does."""
    family = family_of(key.candidate)
    m_multiple, n_multiple = family.multiples(key.candidate)
    alignment = family.alignment(key.candidate)
    return {
        "signature": signature(key),
        "num_strides": family.num_strides,
        "m_multiple": m_multiple,
        "n_multiple": n_multiple,
        "load_alignment": alignment.loads,
        "store_alignment": alignment.stores,
        "workspace": family.workspace(key.candidate),
        "tmem_columns": resources.tmem_columns,
        "num_sms": target.num_sms,
    }


def _of_rows(key: RowKernelKey, target: Target, resources: Resources) -> dict[str, Any]:
    """Return the same of a kernel of an operation on rows."""
    del target, resources
    limits = rows_family_of(key.candidate).limits(key.candidate, key.operation)
    return {"signature": key.operation.signature, "limits": limits}


_OWN: Mapping[str, Callable[[Any, Target, Resources], dict[str, Any]]] = MappingProxyType(
    {GEMM: _of_product, ROWS: _of_rows}
)


def code_of(operation: AnyOperation) -> str:
    """Return the device code that an operation brings along, as `module:function`; empty where its families have it."""
    return operation.function.arithmetic if isinstance(operation, RowOperation) else ""


def read_artifact(directory: Path, key: AnyKey, num_sms: int) -> Artifact[Any] | CompileFailure | None:
    """Read an entry of the store; it is damaged where this raises OSError or DecodeError, or returns None."""
    result, path = read_result(directory / RESULT_NAME), directory / OBJECT_NAME
    if result.failure is not None:
        return CompileFailure(key.name, result.failure, result.seconds)
    kernel = result.kernel
    if kernel is None or kernel.key != key or sha256_of(path) != kernel.object_sha256:
        return None
    if sha256_of(path.with_name(PTX_NAME)) != kernel.ptx_sha256:
        return None
    # An object does not depend on how many SMs there are; what is shipped says which device it was built for.
    known = replace(kernel, num_sms=num_sms) if isinstance(kernel, Kernel) else kernel
    return Artifact(known, path, result.seconds)
