"""An analytic time of a row candidate on a problem: an order to try candidates in, never a measured time.

A row operation moves bytes and does little else. What a candidate adds is how many bytes its threads keep in flight,
how many rounds of CTAs a device takes, and what it reads again. `aot` calls every time that comes from it `predicted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.kinds.rows.candidate import RowKnobs
    from aot.kinds.rows.operation import RowOperation
    from aot.kinds.rows.problem import RowProblem

NAME = "row-cost-model-v1"
"""Version of the model, recorded with every predicted row."""

LATENCY_US = 0.8
"""From a load's issue to its data, from device memory. Source: an assumption, of the size that microbenchmarks of
Hopper publish; it only orders candidates."""

REDUCTION_US = 0.05
"""What a reduction takes where a row's threads are one warp; each doubling of them adds a tenth. Source: an assumption:
five shuffles, and a barrier with a trip to shared memory."""

WARP_BITS = (32).bit_length()
"""Of a warp's threads."""

REREAD = 0.35
"""Time of reading a byte again, over the first time: from L1 or L2. Source: an assumption."""

ELEMENT_US = 0.0015
"""What one more element of a thread adds from its data's arrival to its store. Source: an assumption: some two dozen
instructions, of four warps a scheduler."""


@dataclass(frozen=True)
class Reading:
    """How a kernel works through rows."""

    knobs: RowKnobs
    registers: int
    """Those of a thread."""
    num_reads: int
    """How often it reads X."""


def _resident(reading: Reading, target: Target) -> int:
    """Return the CTAs that an SM holds at once."""
    num_threads = reading.knobs.num_threads
    by_registers = target.registers_per_sm // (reading.registers * num_threads)
    return max(min(by_registers, target.max_threads_per_sm // num_threads), 1)


def row_time_us(reading: Reading, problem: RowProblem, target: Target) -> float:
    """Predict the time of one launch with a cold L2, in microseconds.

    Args:
        reading: of a legal candidate, whose limits take the problem.
        problem: sizes in elements.
        target: rates and limits of the device.
    """
    operation, knobs, num_reads = problem.operation, reading.knobs, reading.num_reads
    parts = -(-problem.cols // knobs.columns)
    groups = -(-problem.rows // knobs.rows_per_cta)
    ctas, rounds = (groups, parts * num_reads) if operation.reduces_rows else (groups * parts, 1)
    slots = _resident(reading, target) * target.num_sms
    moved = problem.num_bytes + REREAD * (num_reads - 1) * operation.x.size_of(problem.rows * problem.cols)
    flight = moved * min(1.0, slots / ctas) / rounds
    rate = min(target.bandwidth_bytes_per_s, flight / LATENCY_US * 1e6)
    elements = knobs.vectors_per_thread * knobs.vector_elements
    latency = rounds * (LATENCY_US + ELEMENT_US * elements) + _reductions_us(operation, knobs)
    waves = -(-ctas // slots)
    return operation.num_launches * target.launch_us + max(moved / rate * 1e6, (waves - 1) * latency) + latency


def _reductions_us(operation: RowOperation, knobs: RowKnobs) -> float:
    """Return the time of the reductions of a row, one for each step that needs all of it."""
    if not operation.reduces_rows:
        return 0.0
    num_reductions = operation.function.num_reductions + operation.reads_for_scales
    doublings = max(knobs.threads_per_row.bit_length() - WARP_BITS, 0)
    return num_reductions * REDUCTION_US * (1 + 0.1 * doublings)
