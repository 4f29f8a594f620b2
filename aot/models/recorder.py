"""Counts the matrix products of a program that runs with this file as its sitecustomize; needs torch alone.

`aot shapes record` puts a copy of it in front of a program's path. Where the program imports torch, every product that
torch dispatches, in any thread and child process, is counted by type, layout and sizes, and the counts are written to
the folder that AOT_RECORD_TO names, a file for each process, as the program runs and when it ends. Nothing else of the
program is changed: products are computed as they were, only slower, and torch.compile leaves code as it is.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import time
from importlib.machinery import PathFinder
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = "AOT_RECORD_TO"
"""Environment variable: where the counts are written."""
UNCOUNTED = ".uncounted"
"""How the file of a process ends that says how often an operator's products could not be counted."""
RUNS_OF_ROWS = (2, 3)
"""Dimensions of the operands of a grouped product whose groups are runs of A's rows, each with a B of its own."""
EVERY_S = 1.0
"""How often they are written while the program runs, for one that is killed."""

_counts: dict[tuple[Any, ...], int] = {}
_uncounted: dict[str, int] = {}
"""How often an operator computed what this file could not read."""
_written = [0.0]
_lock = threading.Lock()


def _count(
    a: Any,
    b: Any,
    d: Any,
    *,
    bias: bool,
    grouping: str = "dense",
    groups: int = 1,
    epilogue: str = "none",
    has_blocks: bool = False,
    factor: str = "",
) -> None:
    """Count a product of a (m, k) and b (k, n), or as many as `groups` says.

    Of runs of rows m is what one group expects, and of runs of k that is k. With a gate b has twice the columns of D.
    Of elements of 4 bits, two of which are a byte, a or b has half of k. `factor` is the element type of narrow
    factors of blocks.
    """
    kinds = [str(x).removeprefix("torch.") for x in (a.dtype, b.dtype, d)]
    kinds[:2] = ["float4_e2m1fn" if factor and x in _PAIRS else x for x in kinds[:2]]
    layout = ("k" if a.stride(-1) == 1 else "m") + ("k" if b.stride(-2) == 1 else "n")
    m, n, k = int(a.shape[-2]), int(b.shape[-1]), int(a.shape[-1]) * (2 if kinds[0] == "float4_e2m1fn" else 1)
    m = -(-m // groups) if grouping in {"grouped", "gathered"} else m
    k = -(-k // groups) if grouping == "kgrouped" else k
    n = n // 2 if epilogue in _GATES.values() else n
    key = (a.device.type, *kinds, layout, bias, grouping, groups, m, n, k, epilogue, has_blocks, factor)
    with _lock:
        _counts[key] = _counts.get(key, 0) + 1
    if time.monotonic() - _written[0] > EVERY_S:
        write()


def _see(name: str, arguments: tuple[Any, ...], result: Any) -> None:
    """Count what an operator of torch computed."""
    dtype = getattr(result, "dtype", None)
    if name == "mm":
        _count(arguments[0], arguments[1], dtype, bias=False)
    elif name == "addmm":
        _count(arguments[1], arguments[2], dtype, bias=arguments[0].dim() == 1)
    elif name == "bmm":
        _count(arguments[0], arguments[1], dtype, bias=False, grouping="batched", groups=int(result.shape[0]))
    elif name == "baddbmm":
        _count(arguments[1], arguments[2], dtype, bias=False, grouping="batched", groups=int(result.shape[0]))
    elif name in {"_grouped_mm", "_scaled_grouped_mm"} and (arguments[0].dim(), arguments[1].dim()) == RUNS_OF_ROWS:
        groups = int(arguments[1].shape[0])
        _count(arguments[0], arguments[1], dtype, bias=False, grouping="grouped", groups=groups)
    elif name == "_scaled_mm":
        factor = _factor(arguments[2], has_own=False)
        _count(arguments[0], arguments[1], dtype, bias=len(arguments) > 4 and arguments[4] is not None, factor=factor)
    elif name == "_int_mm":
        _count(arguments[0], arguments[1], dtype, bias=False)
    elif name == "mv":
        _count(arguments[1][None], arguments[0].t(), dtype, bias=False)


_COMPOSED = {"linear", "matmul"}
"""What torch composes of the others; under inference mode it arrives whole."""


_GATES = {"silu": "swiglu", "gelu_tanh": "geglu"}
"""The epilogue of a gate, by its activation."""
_OWN = {"linear", "matmul", "gated_linear", "grouped_linear", "grouped_linear_weights"}
"""The operators of a wheel that are products."""


def _is_wheels(namespace: str) -> bool:
    """Say whether operators of a namespace are those of a wheel: it is the import name of its package."""
    return hasattr(sys.modules.get(namespace), "AotGemmError")


def _has_blocks(given: dict[str, Any], weight: Any) -> bool:
    """Say whether factors are of blocks of 128 by 128 elements of a weight (..., n, k)."""
    scale = given.get("scale_w")
    blocks = tuple(-(-int(x) // 128) for x in weight.shape[-2:])
    return scale is not None and blocks[1] > 1 and tuple(scale.shape[-2:]) == blocks


_PAIRS = {"uint8", "float4_e2m1fn_x2"}
"""Element types of which each holds two of 4 bits."""
_NARROW = {"float8_e4m3fn", "float8_e8m0fnu"}
"""Element types of factors that are no float32 numbers."""


def _factor(scale: Any, *, has_own: bool) -> str:
    """Return the element type of narrow factors of blocks; empty of others, and where there are none."""
    name = "" if scale is None else str(scale.dtype).removeprefix("torch.")
    if name == "uint8":  # codes, which the tensors' own factors tell apart
        return "float8_e4m3fn" if has_own else "float8_e8m0fnu"
    return name if name in _NARROW else ""


def _factor_of(given: dict[str, Any]) -> str:
    return _factor(given.get("scale_x"), has_own=given.get("scale_out") is not None)


def _see_own(name: str, given: dict[str, Any], result: Any) -> None:
    """Count what an operator of a wheel computed, of arguments by name; what wrote `out` gives nothing."""
    dtype = (given["out"] if result is None else result).dtype
    if name == "matmul":
        _see_matmul(given["a"], given["b"], dtype)
    elif name in {"linear", "gated_linear"}:
        _see_linear(name, given, dtype)
    else:
        _see_groups(given, dtype)


def _see_matmul(a: Any, b: Any, dtype: Any) -> None:
    a, b = a[None] if a.dim() == 1 else a, b[:, None] if b.dim() == 1 else b
    batch = math.prod(max(x) for x in zip_longest(a.shape[-3::-1], b.shape[-3::-1], fillvalue=1))
    if math.prod(b.shape[:-2]) == 1:
        _count(a.reshape(-1, a.shape[-1]), b, dtype, bias=False)
    else:
        _count(a, b, dtype, bias=False, grouping="batched", groups=batch)


def _see_linear(name: str, given: dict[str, Any], dtype: Any) -> None:
    x, weight = given["x"], given["weight"]
    activation = given.get("activation")
    epilogue = _GATES[activation or "silu"] if name == "gated_linear" else activation or "none"
    epilogue = "residual" if epilogue == "none" and given.get("residual") is not None else epilogue
    rows, has_bias, has_blocks = x.reshape(-1, x.shape[-1]), given.get("bias") is not None, _has_blocks(given, weight)
    kinds = rows, weight.mT, dtype
    _count(*kinds, bias=has_bias, epilogue=epilogue, has_blocks=has_blocks, factor=_factor_of(given))


def _see_groups(given: dict[str, Any], dtype: Any) -> None:
    x, weight, index = given["x"], given["weight"], given.get("index")
    groups = len(weight)
    if isinstance(weight, (list, tuple)):
        weight = weight[0]
    elif weight.dim() == len(("n", "k")):  # one matrix, whose groups are runs of k
        _count(x, weight.mT, dtype, bias=False, grouping="kgrouped", groups=len(given["offsets"]))
        return
    rows = x if index is None else x[:1].expand(len(index), x.shape[1])
    _count(
        rows,
        weight.mT,
        dtype,
        bias=given.get("bias") is not None,
        grouping="grouped" if index is None else "gathered",
        groups=groups,
        epilogue=_GATES.get(given.get("gate") or "", "none"),
        has_blocks=_has_blocks(given, weight),
        factor=_factor_of(given),
    )


def recorder_class() -> Any:
    """Make the class of torch's dispatch modes that count what is computed while they are on."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Recorder(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
        ) -> Any:
            del types
            name = function._schema.name.rpartition("::")[2]  # noqa: SLF001 - torch has no public name of an operator
            is_torchs = function.namespace == "aten"
            if is_torchs and name in _COMPOSED:
                with self:
                    result = function.decompose(*arguments, **(options or {}))
                if result is not NotImplemented:
                    return result
            result = function(*arguments, **(options or {}))
            try:
                if name in _OWN and _is_wheels(function.namespace):
                    names = [x.name for x in function._schema.arguments]  # noqa: SLF001 - as above
                    _see_own(name, {**dict(zip(names, arguments, strict=False)), **(options or {})}, result)
                elif is_torchs:
                    _see(name, arguments, result)
            except Exception:  # noqa: BLE001 - what cannot be counted must not end the program, and is told at its end
                with _lock:
                    _uncounted[name] = _uncounted.get(name, 0) + 1
            return result

    return Recorder


def _start() -> None:
    """Count from now on, in this thread and in those that begin."""
    recorder = recorder_class()
    recorder().__enter__()
    threads: Any = threading.Thread
    run = threads.run

    def run_recorded(thread: Any) -> None:
        with recorder():
            run(thread)

    threads.run = run_recorded


_FINDERS: Any = sys.meta_path


class _Finder:
    """Starts the recorder once torch has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name != "torch":
            return None
        _FINDERS.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_start(module: Any) -> None:
            execute(module)
            _start()

        loader.exec_module = execute_and_start
        return spec


def write() -> None:
    """Write the counts of this process."""
    _written[0] = time.monotonic()
    with _lock:
        rows = [[*key, count] for key, count in _counts.items()]
        uncounted = dict(_uncounted)
    for suffix, found in ((".json", rows), (UNCOUNTED, uncounted)):
        if found:
            path = Path(os.environ[FOLDER], f"{os.getpid()}{suffix}")
            partial = path.with_suffix(f".{threading.get_ident()}.part")
            partial.write_text(json.dumps(found), encoding="utf-8")
            partial.replace(path)


def _forget() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _counts.clear()
    _uncounted.clear()


def _chain() -> None:
    """Run the sitecustomize that the program would have had."""
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [x for x in sys.path if Path(x or ".").resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get(FOLDER) and __name__ == "sitecustomize":
    _FINDERS.insert(0, _Finder())
    atexit.register(write)
    os.register_at_fork(after_in_child=_forget)
    _chain()
