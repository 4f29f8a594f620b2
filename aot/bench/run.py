"""Measure a wheel's products beside a library's, on this machine's GPU, in one run."""

from __future__ import annotations

import platform
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.bench.receipt import RECEIPT_VERSION, Machine, Product, Receipt, Wheel, sealed
from aot.core.constraints import Word
from aot.core.errors import DeviceError, VerificationError
from aot.measure.bench import Operands, ProblemBench, Workspace, separator_us
from aot.measure.conditions import make_conditions, read_state
from aot.measure.cublas_library import load_cublas
from aot.measure.device import CudaGpu, read_properties
from aot.measure.dispatched import DispatchedLibrary
from aot.measure.inputs import SOURCE_ELEMENTS, RandomPools
from aot.measure.protocol import num_sets, plan_for, set_bytes
from aot.measure.rounds import final_rounds
from aot.measure.torch_library import load_torch
from aot.measure.worker_process import check_arch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot.bench.found_wheel import FoundWheel
    from aot.core.problem import Problem
    from aot.measure.gpu import Gpu, Kernels, Library
    from aot.measure.protocol import TimingPlan

_WHEEL, _LIBRARY = 0, 1
"""The numbers of the two in the rounds."""


class LibraryChoice(Word):
    """Whose product is timed beside the wheel's."""

    AUTO = "auto"
    """torch's where it can be used, else cuBLAS's, else nobody's."""
    TORCH = "torch"
    CUBLAS = "cublas"
    NONE = "none"


@dataclass
class Scene:
    """What a run measures with."""

    gpu: Gpu
    kernels: Kernels
    library: Library | None
    plan: TimingPlan
    rng: np.random.Generator
    say: Callable[[str], None]
    source_elements: int = SOURCE_ELEMENTS
    flush: int = field(init=False, default=0)
    separator_us: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Allocate what flushes the L2, or time a separator, as the protocol has it."""
        if self.plan.flush_bytes:
            self.flush = self.gpu.alloc(self.plan.flush_bytes)
        else:
            self.separator_us = separator_us(self.gpu, self.plan)


@dataclass(frozen=True)
class Rounds:
    """What the two took of a problem in microseconds, round by round."""

    wheel_us: tuple[float, ...]
    library: str | None
    library_us: tuple[float, ...]


def _beside(scene: Scene, bench: ProblemBench, problem: Problem) -> tuple[ProblemBench, str] | None:
    """Return what times the library's product of a problem, once its result was found right, and its name.

    None where the library has none, fails, or gives a result that is not right, as torch's may be where it adds up
    parts of k in 16 bits: it says so, and the problem is timed without.

    Raises:
        DeviceError: the library took the GPU's context with it.
    """
    library = scene.library
    baseline = None if library is None else library.baseline(problem.operation)
    if library is None or baseline is None:
        return None
    own = bench.beside(library, baseline.arrangement)
    try:
        own.check_baseline(baseline.agreement)
        own.screen_us(0, None)
    except (DeviceError, VerificationError) as error:
        if scene.gpu.is_lost():
            raise
        own.close()
        scene.say(f"warning: {problem.name} is timed without the library: {error}")
        return None
    return own, baseline.name(library.names[0])


def _rounded(us: Sequence[float]) -> tuple[float, ...]:
    """Round times to a tenth of a nanosecond, of which a replay's clock knows none: a receipt is half as long."""
    return tuple(round(x, 4) for x in us)


def _rounds(scene: Scene, bench: ProblemBench, problem: Problem) -> Rounds:
    bench.check(0)
    screened_us = bench.screen_us(0, None)
    beside = _beside(scene, bench, problem)
    benches = {_WHEEL: bench} | ({_LIBRARY: beside[0]} if beside else {})

    def time_once(number: int, rests: bool) -> float:
        return benches[number].round_us(0, rests=rests)

    replay_us = screened_us * bench.num_sets
    try:
        found = final_rounds(problem, list(benches), scene.plan, scene.rng, time_once, replay_us)
    finally:
        for each in benches.values():
            each.close()
    library_us = _rounded(found[_LIBRARY]) if beside else ()
    return Rounds(_rounded(found[_WHEEL]), beside[1] if beside else None, library_us)


def time_problem(scene: Scene, problem: Problem) -> tuple[Rounds, Any]:
    """Time the wheel's product of a problem and the library's, whose results are looked at first.

    Returns:
        The rounds, and the wheel's call of the problem, bound.

    Raises:
        VerificationError: a result is wrong.
        DeviceError: a product failed, or there is too little memory.
    """
    gpu, plan = scene.gpu, scene.plan
    num_bytes = num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem)
    arena = gpu.alloc(num_bytes)
    pools = RandomPools(gpu, scene.rng, min(scene.source_elements, num_bytes))
    operands = Operands(gpu, pools, arena, problem, plan, scene.rng)
    bound = scene.kernels.bind(operands.calls[0])
    size = scene.kernels.workspace_bytes(0, bound)
    workspace = Workspace(gpu.alloc(size) if size else 0, size)
    bench = ProblemBench(
        gpu, scene.kernels, operands, workspace, plan, flush=scene.flush, separator_us=scene.separator_us
    )
    try:
        return _rounds(scene, bench, problem), bound
    finally:
        pools.close()
        for address in (arena, workspace.address):
            if address:
                gpu.free(address)


def open_library(choice: LibraryChoice, gpu: Gpu, say: Callable[[str], None]) -> Library | None:
    """Load the library that is timed beside the wheel; None where none is to be, or with AUTO, where there is none.

    Raises:
        DeviceError: the one that was asked for cannot be used.
    """
    found: Library | None = None
    if choice in (LibraryChoice.AUTO, LibraryChoice.TORCH):
        found = load_torch(gpu.stream, say)
    if found is None and choice in (LibraryChoice.AUTO, LibraryChoice.CUBLAS):
        found = load_cublas(gpu.stream, gpu.alloc, say)
    if found is None and choice in (LibraryChoice.TORCH, LibraryChoice.CUBLAS):
        raise DeviceError(f"--library {choice} cannot be used here, as was said above; leave it out, or give another")
    return found


def _told(wheel: FoundWheel, kernels: DispatchedLibrary) -> Wheel:
    """Say which wheel was measured, and what of it answered on this device."""
    table, reason = kernels.table()
    return Wheel(
        package=wheel.package,
        version=kernels.version,
        sha256=wheel.sha256,
        tables_sha256=wheel.tables_sha256,
        table=table,
        table_reason=reason,
        choices_sha256=kernels.choices(),
    )


def _check_operations(kernels: DispatchedLibrary, problems: Sequence[Problem]) -> None:
    """Refuse operations that the wheel has no kernels of, before minutes are spent on the others (DeviceError)."""
    missing = [x.tag for x in dict.fromkeys(x.operation for x in problems) if not kernels.has(x)]
    if missing:
        raise DeviceError(
            f"the wheel {kernels.version} has no kernels of {', '.join(missing)}; name those that it has with "
            "--operations, or build it with them: aot build --operations"
        )


def measure(
    wheel: FoundWheel,
    problems: Sequence[Problem],
    made_by: str,
    *,
    choice: LibraryChoice = LibraryChoice.AUTO,
    say: Callable[[str], None] = lambda _text: None,
    at: Callable[[str], None] = lambda _text: None,
) -> Receipt:
    """Measure a wheel on this machine's GPU, and return the receipt, which is not signed.

    Args:
        wheel: the wheel.
        problems: what is measured.
        made_by: the toolchain and its version.
        choice: whose product is timed beside the wheel's.
        say: told what a person should know.
        at: told how far it is.

    Raises:
        DeviceError: there is no GPU that the wheel is for, or a product failed.
        VerificationError: a result is wrong.
    """
    date = time.strftime("%Y-%m-%d", time.gmtime())
    properties = read_properties()
    gpu = CudaGpu(properties)
    kernels = DispatchedLibrary(wheel.library)
    check_arch(kernels.arch, properties.compute_capability, properties.name)
    _check_operations(kernels, problems)
    plan = plan_for(properties.l2_bytes, integrated=properties.integrated)
    library = open_library(choice, gpu, say)
    before = make_conditions(properties, read_state(properties.pci_bus_id), kernels.arch, plan.protocol, date)
    scene = Scene(gpu, kernels, library, plan, np.random.default_rng(secrets.randbits(62)), say)
    products = []
    for number, problem in enumerate(problems, 1):
        at(f"{number} of {len(problems)}, {problem.name}")
        rounds, bound = time_problem(scene, problem)
        products.append(Product(problem, kernels.chosen(bound), rounds.wheel_us, rounds.library, rounds.library_us))
    after = read_state(properties.pci_bus_id)
    return sealed(
        Receipt(
            receipt_version=RECEIPT_VERSION,
            made_by=made_by,
            date=date,
            wheel=_told(wheel, kernels),
            machine=Machine(
                conditions=before,
                host=platform.machine(),
                l2_bytes=properties.l2_bytes,
                sm_clock_mhz_after=after.sm_clock_mhz,
                memory_clock_mhz_after=after.memory_clock_mhz,
            ),
            products=tuple(products),
        )
    )
