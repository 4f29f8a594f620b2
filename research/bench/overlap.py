"""What the overlap of kernels is worth: products behind a kernel of another kind, and weights that are not read early.

Back to back, the wheel's kernels start while the product in front still runs (programmatic dependent launch). Two
checks say how much of the wheel's figures rests on that: a small kernel of torch's, which takes part in no such launch,
in front of every product; and the wheel's kernels back to back, but told to read weights only after the kernel in front
has ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from research.bench.protocol import Call, Operands, capture, interleave, make_sets

CELLS = tuple((m, n, k) for n, k in ((4096, 4096), (8192, 8192)) for m in (1, 64, 512))
NUM_ELEMENTS = 1024
"""Of the vector that the kernel in front negates, in float32."""

DESCRIPTION = (
    "bf16, medians in microseconds a call, all in the same interleaved rounds of CUDA-graph replays, cold L2. "
    "wheel_us, torch_us: products back to back, as in the tables. "
    "wheel_behind_us, torch_behind_us: in front of each product stands torch's neg of 1,024 float32, a kernel which "
    "takes part in no programmatic dependent launch; its own time back to back, elementwise_us, measured in the same "
    "round, is subtracted. "
    "constant_us, constant_behind_us: the wheel's with weights promised constant, which it may read while the kernel "
    "in front still runs; without the promise launches overlap, but no operand is read before that has ended. "
    "speedup, speedup_behind, constant_speedup, constant_speedup_behind: torch's time over the wheel's."
)


def behind(call: Call, vector: torch.Tensor) -> Call:
    """Give a call with an elementwise kernel in front."""

    def pair(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        torch.neg(vector, out=vector)
        call(x, weight, out)

    return pair


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Give the median of each over the rounds; those behind a kernel less its time in the same round."""
    alone = times["elementwise"]
    result = {}
    for name, values in times.items():
        own = [a - b for a, b in zip(values, alone, strict=True)] if name.endswith("_behind") else values
        result[name] = statistics.median(own)
    return result


def measure_cell(
    shape: tuple[int, int, int], wheel: Call, constant: Callable[[Sequence[Operands]], Call], torch_call: Call
) -> dict[str, Any]:
    """Time one product, (m, n, k), in each of the ways."""
    sets: list[Operands] = make_sets(*shape, torch.bfloat16)
    vector = torch.ones(NUM_ELEMENTS, device="cuda")
    calls = {"wheel": wheel, "constant": constant(sets), "torch": torch_call}
    graphs = {name: capture(call, sets) for name, call in calls.items()}
    graphs |= {f"{name}_behind": capture(behind(call, vector), sets) for name, call in calls.items()}
    graphs["elementwise"] = capture(lambda *_: torch.neg(vector, out=vector), sets)
    us = medians(interleave(graphs))
    return {
        **dict(zip(("m", "n", "k"), shape, strict=True)),
        **{f"{name}_us": round(us[name], 3) for name in ("elementwise", *calls, *(f"{name}_behind" for name in calls))},
        "speedup": round(us["torch"] / us["wheel"], 4),
        "speedup_behind": round(us["torch_behind"] / us["wheel_behind"], 4),
        "constant_speedup": round(us["torch"] / us["constant"], 4),
        "constant_speedup_behind": round(us["torch_behind"] / us["constant_behind"], 4),
    }


def measure(
    wheel: Call, constant: Callable[[Sequence[Operands]], Call], torch_call: Call, report: Callable[[str], None]
) -> dict[str, Any]:
    """Time every cell, and say what the figures are.

    Args:
        wheel: the wheel's product, by default.
        constant: makes its product of operands whose weights are promised constant.
        torch_call: torch's product.
        report: takes a line of progress a cell.
    """
    cells = []
    for shape in CELLS:
        row = measure_cell(shape, wheel, constant, torch_call)
        cells.append(row)
        report(f"overlap m{row['m']} n{row['n']} k{row['k']}: " + ", ".join(f"{x} {row[x]}" for x in row if "_us" in x))
    return {"description": DESCRIPTION, "cells": cells}
