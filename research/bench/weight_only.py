"""Time few rows of x by packed weights, beside torch's product with the same weights in 16 bits, and beside Marlin.

    PYTHONPATH=. python research/bench/weight_only.py --library build/weight_only --out weight_only.json

on a machine with an H100 or H200, torch and numpy, from the repository's root; `research.bench.weight_only_library` has
made the library. `--marlin libmarlin.so` adds Marlin's product of float16, groups of 128, by a library whose function
marlin_c(a, b, c, scales, m, n, k, workspace, group, stream, thread_k, thread_n, sms, max_par) calls it. Medians over
interleaved rounds of CUDA-graph replays, which read weights from memory. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from aot.core.element import ElementType
from aot.core.weight_format import Code, PackedLayout, WeightFormat, WeightParts, format_named
from aot.core.weight_packing import pack
from aot.core.weight_values import weight_values
from research.bench.options import write
from research.bench.protocol import L2_MULTIPLE, capture, interleave, relative_error
from research.bench.weight_only_library import INDEX, LIBRARY, Variant

WEIGHTS = ((2560, 2560), (4096, 4096), (6144, 4096), (9728, 2560), (4096, 14336), (8192, 8192), (28672, 4096))
"""Rows and k."""
ROWS = (1, 4, 16)
REPEATED = 512
"""Rows of a weight that are drawn; others are these again."""
TOLERANCE = 0.004
"""Relative Frobenius error, twice what rounding D to bfloat16 comes to."""
MOST_BYTES = 8 << 30
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MARLIN_GROUP = 128
MARLIN_TILES = ((-1, -1), (128, 128), (64, 256))
"""thread_k and thread_n: by its own choice, and the two that there are."""


class _Matrix(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int64))


class _Factors(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32), ("stride", ctypes.c_int64))


class _Bias(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32))


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("x", "weight", "d")),
        ("factors", _Factors),
        ("bias", _Bias),
        ("is_constant", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    )


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _matrix(tensor: torch.Tensor) -> _Matrix:
    return _Matrix(tensor.data_ptr(), (ctypes.c_int32 * 2)(*tensor.shape), tensor.stride(0))


class Library:
    """The kernels, and what each of them is."""

    def __init__(self, folder: Path) -> None:
        for name in ("libcuda.so.1", "libcudart.so.13", "libcudart.so.12"):
            try:
                ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
        self._library = ctypes.CDLL(str((folder / LIBRARY).resolve()))
        self._programmatic = ctypes.c_int.in_dll(self._library, "is_programmatic")
        self.variants = [Variant(**x) for x in json.loads((folder / INDEX).read_text(encoding="utf-8"))]

    def call(
        self, kernel: int, factors: torch.Tensor | None, *, programmatic: bool
    ) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
        """Return what launches a kernel on x, a packed weight and D."""

        def launch(x: torch.Tensor, weight: torch.Tensor, d: torch.Tensor) -> None:
            held = _Factors(None, 0, 0)
            if factors is not None:
                held = _Factors(factors.data_ptr(), factors.numel(), int(factors.numel() > 1))
            self._programmatic.value = int(programmatic)
            call = _Call(_matrix(x), _matrix(weight), _matrix(d), held, _Bias(None, 0), 1, _stream())
            status = self._library.weight_only(kernel, ctypes.byref(call))
            if status:
                raise SystemExit(f"{self.variants[kernel].name}: CUDA error {status}")

        return launch


@dataclass(frozen=True)
class Weight:
    """A weight, packed and as numbers."""

    packed: list[torch.Tensor]
    """Copies that exceed the L2."""
    values: torch.Tensor
    """(n, k), float32."""
    factors: torch.Tensor | None


def _copies(num_bytes: int) -> int:
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(200, math.ceil(L2_MULTIPLE * l2 / num_bytes)))


def make_weight(form: WeightFormat, element: str, n: int, k: int, rng: np.random.Generator) -> Weight:
    """Draw a weight whose values are around 1."""
    codes = rng.integers(0, 1 << form.code.bits, (REPEATED, k)).astype(np.uint8)
    if form.code is Code.E4M3:
        codes &= 0xBF  # up to 2, no NaN
    factors = None
    if form.group:
        shape = (REPEATED, form.num_groups(k))
        if form.factor_bits == 16:
            drawn = torch.from_numpy(rng.uniform(0.05, 0.2, shape)).to(DTYPES[element])
            factors = drawn.view(torch.int16).numpy().view(np.uint16)
        else:
            low, high = (0x30, 0x40) if form.is_nvfp4 else (125, 129)
            factors = rng.integers(low, high, shape).astype(np.uint8)
    of_rows = None
    if form.is_nvfp4:
        of_rows = torch.full((1,), 0.5)
    elif not form.group:
        of_rows = torch.from_numpy(rng.uniform(0.005, 0.02, REPEATED).astype(np.float32)).repeat(n // REPEATED)
    zeros = rng.integers(0, 16, factors.shape).astype(np.uint8) if form.has_zeros and factors is not None else None
    parts = WeightParts(codes, factors, zeros)
    held = torch.from_numpy(pack(form, parts))
    first = PackedLayout(form).first_atom_row(REPEATED) if form.in_rows else len(held)
    packed = torch.cat([x.repeat(n // REPEATED, 1) for x in (held[:first], held[first:])]).cuda()
    values = torch.from_numpy(weight_values(form, parts, ElementType(element)).astype(np.float32))
    values = values.repeat(n // REPEATED, 1).cuda()
    if of_rows is not None:
        of_rows = of_rows.cuda()
        values *= of_rows[:, None]
    copies = [packed, *(packed.clone() for _ in range(_copies(packed.nbytes) - 1))]
    return Weight(copies, values, of_rows)


def marlin_calls(path: str | None, m: int, n: int, k: int) -> Iterator[tuple[str, Any, list[tuple[Any, ...]]]]:
    """Return Marlin's calls and their operands, where there is a library of it and it takes the sizes."""
    if path is None or n % 256 or k % MARLIN_GROUP:
        return
    library, count = ctypes.CDLL(str(Path(path).resolve())), _copies(n * k // 2)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    weights = [torch.randint(-(2**31), 2**31 - 1, (k // 16, n * 2), dtype=torch.int32).cuda() for _ in range(count)]
    scales = torch.rand(k // MARLIN_GROUP, n, device="cuda").half()
    d, space = torch.empty(m, n, device="cuda").half(), torch.zeros(n // 8, device="cuda", dtype=torch.int32)
    sets = [(torch.randn(m, k, device="cuda").half(), x, d) for x in weights]
    for tile_k, tile_n in MARLIN_TILES:

        def call(x: Any, weight: Any, d: Any, tile: tuple[int, int] = (tile_k, tile_n)) -> int:
            pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, weight, d, scales))
            last = ctypes.c_void_p(space.data_ptr()), MARLIN_GROUP, _stream(), *tile, sms, 16
            return int(library.marlin_c(*pointers, m, n, k, *last))

        if call(*sets[0]) == 0:
            yield f"marlin {tile_k} {tile_n}", call, sets


def time_problem(
    library: Library, weight: Weight, form: WeightFormat, element: str, m: int, marlin: str | None
) -> dict[str, Any]:
    """Time all kernels for a problem, and what they are compared with."""
    n, k = weight.values.shape
    dtype = DTYPES[element]
    x = torch.randn(m, k, device="cuda").to(dtype)
    expected = x.double() @ weight.values.double().t()
    sets = [(x, packed, torch.empty(m, n, dtype=dtype, device="cuda")) for packed in weight.packed]
    wide = weight.values.to(dtype)
    widened = [wide, *(wide.clone() for _ in range(min(_copies(wide.nbytes), MOST_BYTES // wide.nbytes) - 1))]
    graphs = {"torch": capture(lambda x, w, d: torch.mm(x, w.t(), out=d), [(x, w, sets[0][2]) for w in widened])}
    columns = min(c for c in {v.columns for v in library.variants} if c >= m)
    errors: dict[str, float] = {}
    for i, variant in enumerate(library.variants):
        if (variant.form, variant.element, variant.columns) != (form.name, element, columns):
            continue
        for programmatic in (False, True):
            call, name = library.call(i, weight.factors, programmatic=programmatic), variant.name
            sets[0][2].fill_(float("nan"))
            call(*sets[0])
            errors[name] = max(errors.get(name, 0.0), relative_error(sets[0][2], expected))
            graphs[f"{name} {'with' if programmatic else 'without'}"] = capture(call, sets)
    if form.name == "int4g128" and element == "float16":
        graphs |= {name: capture(call, operands) for name, call, operands in marlin_calls(marlin, m, n, k)}
    times = {name: statistics.median(found) for name, found in interleave(graphs).items()}
    bad = {x: y for x, y in errors.items() if not y <= TOLERANCE}

    def best(suffix: str) -> tuple[str, float]:
        found = {x: y for x, y in times.items() if x.endswith(suffix) and x.split()[0] not in bad}
        return min(found.items(), key=lambda x: x[1], default=("none", math.nan))

    of_marlin = min((y for x, y in times.items() if x.startswith("marlin")), default=None)
    return {
        "format": form.name, "element": element, "m": m, "n": n, "k": k, "bytes": weight.packed[0].nbytes,
        "torch_us": times["torch"], "marlin_us": of_marlin, "without": best(" without"), "with": best(" with"),
        "errors": errors, "wrong": bad, "times_us": times,
    }  # fmt: skip


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", type=Path, required=True, help="folder of the library")
    parser.add_argument("--marlin", help="a library with marlin_c")
    parser.add_argument("--formats", help="formats to time, by commas; all that the library has if left away")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    arguments = parser.parse_args()
    library, rows = Library(arguments.library), []
    wanted = arguments.formats.split(",") if arguments.formats else None
    for form, element in dict.fromkeys((x.form, x.element) for x in library.variants):
        if wanted is not None and form not in wanted:
            continue
        for n, k in WEIGHTS:
            weight = make_weight(format_named(form), element, n, k, np.random.default_rng(n + k))
            for m in ROWS:
                row = time_problem(library, weight, format_named(form), element, m, arguments.marlin)
                rows.append(row)
                speed = row["bytes"] / row["with"][1] / 1e6
                marlin = "" if row["marlin_us"] is None else f", Marlin {row['marlin_us']:.1f}"
                ours = f"{row['without'][1]:.1f} us, programmatic {row['with'][1]:.1f} ({speed:.2f} TB/s)"
                print(
                    f"{form} {element} n {n} k {k} m {m}: {ours}, torch 16 bits {row['torch_us']:.1f}{marlin}; "
                    f"{row['with'][0]}",
                    *(f"WRONG {x}: {y:.3g}" for x, y in row["wrong"].items()),
                    flush=True,
                )
            del weight
            torch.cuda.empty_cache()
    device = torch.cuda.get_device_name(0)
    write(arguments.out, {"device": device, "torch": torch.__version__, "rows": rows})
    return int(any(x["wrong"] for x in rows))


if __name__ == "__main__":
    sys.exit(main())
