"""What the compiler asks of kernels of products and of row operations: their entries, sources and results."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.artifact import PTX_NAME, Artifact, CompileFailure, RowArtifact, read_result
from aot.core.candidate import KernelKey
from aot.core.errors import CompileError
from aot.core.json_text import plain_json
from aot.core.kernel import Kernel
from aot.families import family_of, signature
from aot.families._entry_points import OWN, registrations
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.kernel import RowKernel
from aot.kinds.rows.signature import row_signature_of
from aot.row_families import row_family_of
from aot.space.legality import check
from aot.space.row_legality import check_row

if TYPE_CHECKING:
    from aot.compile.object_file import ObjectReport
    from aot.core.candidate import Verdict
    from aot.core.target import Target
    from aot.families import Binary, Entry

AnyKey = KernelKey | RowKernelKey

OBJECT_NAME = "kernel.o"
RESULT_NAME = "result.json"

FAMILIES, ROW_FAMILIES = (Path(__file__).parents[1] / name for name in ("families", "row_families"))


def _imports(source: bytes) -> set[str]:
    """Return the full names of all that a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _modules(folder: Path, package: str) -> dict[str, Path]:
    return {f"aot.{package}.{path.stem}": path for path in folder.glob("*.py")}


def _closure(first: set[str], modules: dict[str, Path]) -> dict[str, bytes]:
    """Read some modules and what they import of others, by their names."""
    found: dict[str, bytes] = {}
    todo = set(first)
    while todo:
        name = todo.pop()
        found[name] = modules[name].read_bytes()
        todo |= (_imports(found[name]) & modules.keys()) - found.keys()
    return found


def _hash_of(first: set[str], modules: dict[str, Path]) -> str:
    """Hash some modules and what they import of others."""
    digest = hashlib.sha256()
    for _, content in sorted(_closure(first, modules).items()):
        digest.update(content)
    return digest.hexdigest()


@cache
def _files_outside(family: str) -> dict[str, Path]:
    """List the files of the package that a family of another distribution is in, by their places; none of ours."""
    found = registrations().get(family)
    if found is None or found.distribution == OWN:
        return {}
    top = found.entry.module.partition(".")[0]
    spec = find_spec(top)
    if spec is None or not spec.origin:
        raise CompileError(f"{found.source}: no package {top!r}, whose files its kernels are made of")
    folders = [Path(x) for x in spec.submodule_search_locations or ()]
    if not folders:
        return {Path(spec.origin).name: Path(spec.origin)}
    files = [(folder, x) for folder in folders for x in folder.rglob("*") if x.is_file()]
    return {str(x.relative_to(folder)): x for folder, x in files if "__pycache__" not in x.parts}


def _imports_outside(family: str) -> set[str]:
    """List what the modules of another distribution's family import."""
    sources = (x for x in _files_outside(family).values() if x.suffix == ".py")
    return {name for source in sources for name in _imports(source.read_bytes())}


@cache
def family_imports(family: str) -> frozenset[str]:
    """List the full names of all that a family, of products or of rows, imports itself or through its neighbours."""
    modules = _modules(ROW_FAMILIES, "row_families") | _modules(FAMILIES, "families")
    outside = _imports_outside(family)
    first = ({f"aot.{package}.{family}" for package in ("families", "row_families")} | outside) & modules.keys()
    return frozenset(outside | {name for content in _closure(first, modules).values() for name in _imports(content)})


@cache
def family_sources(family: str, folder: Path = FAMILIES) -> str:
    """Hash a family's module and what it imports from beside it, so that a changed entry is compiled again.

    Of a family of another distribution, all files of its package are hashed: a kernel may be one of them.
    """
    modules = _modules(folder, "families")
    first = ({f"aot.families.{family}"} | _imports_outside(family)) & modules.keys()
    own = _hash_of({"aot.families.__init__", *first}, modules)
    outside = [f"{name}:{_sha256_of(path)}" for name, path in sorted(_files_outside(family).items())]
    return hashlib.sha256("\n".join([own, *outside]).encode()).hexdigest() if outside else own


@cache
def row_family_sources(family: str) -> str:
    """Hash the module of a family of row kernels and what it imports from beside it and of the products' families."""
    modules = _modules(ROW_FAMILIES, "row_families") | _modules(FAMILIES, "families")
    return _hash_of({"aot.row_families.__init__", f"aot.row_families.{family}"}, modules)


def sources_of(key: AnyKey) -> str:
    """Hash the sources of a kernel's family."""
    family = key.candidate.family
    return row_family_sources(family) if isinstance(key, RowKernelKey) else family_sources(family)


def sources_changed(key: AnyKey) -> bool:
    """Say whether the sources of a kernel's family are others now than when this process first hashed them."""
    read = row_family_sources if isinstance(key, RowKernelKey) else family_sources
    return read.__wrapped__(key.candidate.family) != sources_of(key)


def entry_of(key: AnyKey, target: Target) -> Entry | Binary:
    """Build the function to compile, or get the kernel that another compiler made. Imports the kernel's library."""
    if isinstance(key, RowKernelKey):
        return row_family_of(key.candidate).entry(key.candidate, key.operation)
    return family_of(key.candidate).entry(key.candidate, key.operation, target)


def verdict_of(key: AnyKey, target: Target) -> Verdict:
    """Say whether a kernel is legal on a target."""
    if isinstance(key, RowKernelKey):
        return check_row(key.candidate, key.operation, target)
    return check(key.candidate, key.operation, target)


def described(key: AnyKey, target: Target, path: Path) -> dict[str, Any]:
    """Describe a compiled object, as the store keeps it."""
    if isinstance(key, RowKernelKey):
        return {"row_kernel": plain_json(_describe_row(key, target, path))}
    return {"kernel": plain_json(_describe(key, target, path))}


def _sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _of_object(key: AnyKey, report: ObjectReport, path: Path) -> dict[str, Any]:
    """Return what an object, and the PTX beside it, say of their kernel, of either kind."""
    return {
        "name": key.name,
        "operation": key.operation,
        "candidate": key.candidate,
        "object_sha256": report.sha256,
        "object_bytes": report.num_bytes,
        "entry_symbol": report.entry_symbol,
        "init_symbol": report.init_symbol,
        "load_symbol": report.load_symbol,
        "registers": report.registers,
        "spill_bytes": report.spill_bytes,
        "ptx_sha256": _sha256_of(path.with_name(PTX_NAME)),
    }


def _describe(key: KernelKey, target: Target, path: Path) -> Kernel:
    from aot.compile.object_file import inspect

    family = family_of(key.candidate)
    resources = family.resources(key.candidate, key.operation, target)
    report = inspect(path, key.name, target, resources.num_threads)
    m_multiple, n_multiple = family.multiples(key.candidate)
    alignment = family.alignment(key.candidate)
    return Kernel(
        **_of_object(key, report, path),
        signature=signature(key),
        num_strides=family.num_strides,
        m_multiple=m_multiple,
        n_multiple=n_multiple,
        load_alignment=alignment.loads,
        store_alignment=alignment.stores,
        workspace=family.workspace(key.candidate),
        smem_bytes=resources.smem_bytes,
        tmem_columns=resources.tmem_columns,
        num_threads=resources.num_threads,
        num_sms=target.num_sms,
    )


def _describe_row(key: RowKernelKey, target: Target, path: Path) -> RowKernel:
    from aot.compile.object_file import inspect

    family = row_family_of(key.candidate)
    resources = family.resources(key.candidate, key.operation)
    report = inspect(path, key.name, target, resources.num_threads)
    return RowKernel(
        **_of_object(key, report, path),
        signature=row_signature_of(key.operation),
        limits=family.limits(key.candidate, key.operation),
        smem_bytes=resources.smem_bytes,
        num_threads=resources.num_threads,
    )


def read_artifact(directory: Path, key: AnyKey, num_sms: int) -> Artifact | RowArtifact | CompileFailure | None:
    """Read an entry of the store; it is damaged where this raises OSError or DecodeError, or returns None."""
    result, path = read_result(directory / RESULT_NAME), directory / OBJECT_NAME
    if result.failure is not None:
        return CompileFailure(key.name, result.failure, result.seconds)
    kernel = result.kernel or result.row_kernel
    if kernel is None or kernel.key != key or _sha256_of(path) != kernel.object_sha256:
        return None
    if _sha256_of(path.with_name(PTX_NAME)) != kernel.ptx_sha256:
        return None
    if isinstance(kernel, RowKernel):
        return RowArtifact(kernel, path, result.seconds)
    return Artifact(replace(kernel, num_sms=num_sms), path, result.seconds)
