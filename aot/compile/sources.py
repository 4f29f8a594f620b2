"""The sources of families: what an object depends on beside its candidate, and what a family imports."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from aot.core.errors import CompileError
from aot.families._entry_points import OWN, registrations

FAMILIES = Path(__file__).parents[1] / "families"


def sha256_of(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache  # every compilation asks this of all modules of its family, to see whether one has changed
def _imports(source: bytes) -> frozenset[str]:
    """Return the full names of all that a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def _modules(folder: Path) -> dict[str, Path]:
    """List the modules of families by their names, a package by that of its `__init__`."""
    files = ((x.relative_to(folder).with_suffix("").parts, x) for x in folder.rglob("*.py"))
    return {".".join(("aot", "families", *parts)): path for parts, path in files}


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


def _module_of(family: str) -> str:
    found = registrations().get(family)
    return found.entry.module if found else f"aot.families.{family}"


@cache
def _files_outside(family: str) -> dict[str, Path]:
    """List the files of the package that a family of another distribution is in, by their places; none of ours."""
    found = registrations().get(family)
    if found is None or found.distribution == OWN:
        return {}
    return files_of_package(found.entry.module, found.source)


def files_of_package(module: str, source: str) -> dict[str, Path]:
    """List the files of the package that a module is in, by their places.

    Args:
        module: its name.
        source: what messages call the place that names it.

    Raises:
        CompileError: there is no such package.
    """
    top = module.partition(".")[0]
    spec = find_spec(top)
    if spec is None or not spec.origin:
        raise CompileError(f"{source}: no package {top!r}, whose files its kernels are made of")
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
    """List the full names of all that a family imports itself or through its neighbours."""
    modules, outside = _modules(FAMILIES), _imports_outside(family)
    first = ({_module_of(family)} | outside) & modules.keys()
    return frozenset(outside | {name for content in _closure(first, modules).values() for name in _imports(content)})


@cache
def family_sources(family: str, folder: Path = FAMILIES) -> str:
    """Hash a family's module and what it imports from beside it, so that a changed entry is compiled again.

    Of a family of another distribution, all files of its package are hashed: a kernel may be one of them.
    """
    modules = _modules(folder)
    first = ({_module_of(family)} | _imports_outside(family)) & modules.keys()
    own = _hash_of({"aot.families.__init__", *first}, modules)
    outside = [f"{name}:{sha256_of(path)}" for name, path in sorted(_files_outside(family).items())]
    return hashlib.sha256("\n".join([own, *outside]).encode()).hexdigest() if outside else own


@cache
def code_sources(code: str) -> str:
    """Hash the module of device code that an operation names as `module:function`, and what it imports of families.

    Of code of another distribution, all files of its package are hashed. Empty where the operation names none.
    """
    if not code:
        return ""
    module, modules = code.partition(":")[0], _modules(FAMILIES)
    if module in modules:
        return _hash_of({module}, modules)
    files = (f"{name}:{sha256_of(path)}" for name, path in sorted(files_of_package(module, code).items()))
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def sources_changed(family: str, code: str = "") -> bool:
    """Say whether the sources of a family, or of an operation's code, are others than when they were first hashed."""
    is_of_code = code_sources.__wrapped__(code) != code_sources(code)
    return is_of_code or family_sources.__wrapped__(family) != family_sources(family)
