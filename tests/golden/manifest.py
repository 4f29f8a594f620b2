"""A small fixed manifest that exercises every branch of the templates."""

from __future__ import annotations

from dataclasses import replace

from aot.core.candidate import Candidate, KernelKey, Workspace, gemm_candidate
from aot.core.dispatch import MAX_STEP_M, Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.element import ElementType
from aot.core.execution import Execution, KernelState
from aot.core.kernel import Kernel
from aot.core.knobs import SplitK
from aot.core.measurement import Conditions
from aot.core.operation import Layout, Operation
from aot.families import signature
from aot.package.manifest import MANIFEST_VERSION, ElementBits, Manifest, WheelTable, from_json, to_json
from aot.package.packed_table import NO_GRID
from aot.select.coverage import Coverage
from aot.select.selection import HeldOut, Regret

KK = Operation.of(ElementType.BFLOAT16)
KN = Operation.of(ElementType.BFLOAT16, Layout.KN)
FALLBACK = gemm_candidate(family="simt", tile_m=16, tile_n=16, use_tma_store=False)
BIG = gemm_candidate(family="sm90_quack", tile_m=128, tile_n=256, cluster_m=2, schedule="coop")
SMALL = gemm_candidate(family="sm90_quack", tile_m=64, tile_n=16, schedule="pingpong", swap_ab=True)
SPLIT = gemm_candidate(
    family="sm90_prefetch_b", tile_m=64, tile_n=32, schedule="splitk", split_k=4, split_k_mode="serial"
)


def gemm_workspace(candidate: Candidate) -> Workspace:
    """Return the workspace of a kernel that has the knobs of most products."""
    if candidate.gemm.split_k_mode in (SplitK.NONE, SplitK.CLUSTER):
        return Workspace()
    shape = (candidate.gemm.tile_m, candidate.gemm.tile_n, candidate.gemm.cluster_m, candidate.gemm.cluster_n)
    num_clusters = 15 if candidate.gemm.split_k_mode == SplitK.TAIL else 1
    return Workspace(candidate.gemm.split_k_mode, candidate.gemm.split_k, *shape, candidate.gemm.swap_ab, num_clusters)


def kernel(
    operation: Operation,
    candidate: Candidate,
    num_strides: int = 1,
    multiples: tuple[int, int] = (1, 1),
    workspace: Workspace | None = None,
):
    """Make the manifest's entry of a kernel whose object is as the DSL would name it."""
    name = KernelKey(operation, candidate).name
    workspace = gemm_workspace(candidate) if workspace is None else workspace
    return Kernel(
        name=name,
        operation=operation,
        candidate=candidate,
        object_sha256="0" * 64,
        object_bytes=35000,
        ptx_sha256="0" * 64,
        entry_symbol=f"_mlir_{name}__mlir_ciface_entry",
        init_symbol=f"_mlir_{name}_cuda_init",
        load_symbol=f"_mlir_{name}_cuda_load_to_device",
        signature=signature(KernelKey(operation, candidate)),
        num_strides=num_strides,
        m_multiple=multiples[0],
        n_multiple=multiples[1],
        workspace=workspace,
        smem_bytes=229376,
        tmem_columns=0,
        num_threads=384,
        registers=168,
        spill_bytes=0,
        num_sms=132,
        state=KernelState.COMPILED,
    )


def execution(name: str) -> Execution:
    """Make what the interpreter found of a kernel that is right."""
    return Execution(name, "0" * 64, "1" * 64, 4, 3, 12, 0.375, 0, "2026-11-26")


def row(chosen: int, general: int, time_us: float, runner_up: int) -> Row:
    """Make a measured row whose runner-up is a tenth slower; past 20 us the library was timed too."""
    library_us = round(time_us * 1.2, 3) if time_us > 20 else None
    return Row(chosen, general, time_us, "measured", runner_up, round(time_us * 1.1, 3), library_us=library_us)


def golden_manifest() -> Manifest:
    """Make the manifest: two sections, one with two ladders and one with none and a grid of one column."""
    kernels = (
        kernel(KK, FALLBACK, num_strides=2),
        replace(kernel(KK, BIG, multiples=(256, 256)), state=KernelState.RUN),
        replace(kernel(KK, SMALL), state=KernelState.RUN),
        replace(kernel(KK, SPLIT), state=KernelState.EXECUTED),
        kernel(KN, FALLBACK, num_strides=2),
    )
    ladders = (
        Ladder(4096, 4096, (16, 256, 4096), (row(3, 3, 5.5, 2), row(2, 2, 9.0, 1), row(1, 2, 190.25, 2))).shortened,
        Ladder(14336, 4096, (64,), (row(2, 2, 31.0, 1),)).shortened,
    )
    columns = (
        Column((64, 4096), (2, 3)),
        Column((4096,), (2,)),
        Column((16, 64, 4096), (3, 2, 3)),
        Column((64, MAX_STEP_M), (2, 3)),
    )
    sections = (
        Section(KK, ladders, Grid((1024, 8192), (1024, 8192), columns), fallback=0),
        Section(KN, (), Grid((1,), (1,), (Column((1,), (4,)),)), fallback=4),
    )
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        package="aot-gemm",
        version="0.1.0",
        arch="sm_90a",
        platform_tag="manylinux_2_28_x86_64",
        element_bits={"bf16": ElementBits(16, 16, 16, 0)},
        toolchain={"nvidia-cutlass-dsl": "4.8.1", "ptxas": "13.4"},
        executions=(execution(kernels[3].name),),
        kernels=kernels,
        tables=(golden_table(sections, {kernels[2].name: ("128x16 legal: +5.0% measured", "128x32 not legal: why")}),),
    )


def golden_table(sections: tuple[Section, ...], bigger_tiles: dict[str, tuple[str, ...]]) -> WheelTable:
    """Make the table of an H200."""
    return WheelTable(
        target="h200",
        device_names=("NVIDIA H200",),
        num_sms=132,
        nominal_bandwidth_bytes_per_s=4.8e12,
        table=DispatchTable(sections),
        provenance="measured",
        record="h200-golden",
        conditions=(
            Conditions("NVIDIA H200", "sm_90a", 132, "580.159", 1980, 3201, "700 W", "2026-11-20", "graph-cold-l2-v1"),
        ),
        regrets=(Regret(KK, 4, 3, 0.0125, 0.1, "exact", 0.01),),
        heldout=(HeldOut(KK, 1, 2, 1, 0.02, 0.03, 0.04, 0.05, "bf16_kk m3 n4096 k4096"),),
        coverage=Coverage(3, 1, "bf16_kk m1 n4096 k4096", {"n 7 is no multiple of 8": 1}, {"no kernels of fp16": 2}),
        peak_flops_per_s={"bf16": 7.9e14},
        bandwidth_bytes_per_s=4.3e12,
        bigger_tiles=bigger_tiles,
    )


def as_compiled(kernels):
    """Say of kernels that were just compiled that they were."""
    return tuple(x if x.state else replace(x, state=KernelState.COMPILED) for x in kernels)


def with_table(manifest: Manifest, kernels: tuple[Kernel, ...], table: DispatchTable, **changes: object) -> Manifest:
    """Give a manifest other kernels, and one table over them."""
    calls = {x.operation.call: x.operation for x in kernels}
    bits = {call: ElementBits.of(operation) for call, operation in calls.items()}
    changes = {"peak_flops_per_s": dict.fromkeys(calls, 7.9e14), "bigger_tiles": {}, **changes}
    only = replace(manifest.tables[0], table=table, **changes)
    executed = {x.name for x in kernels if x.state is KernelState.EXECUTED}
    executions = tuple(x for x in manifest.executions if x.kernel in executed)
    return replace(manifest, kernels=as_compiled(kernels), element_bits=bits, tables=(only,), executions=executions)


def with_kernels(manifest: Manifest, **changes: object) -> Manifest:
    """Change fields of every kernel of a manifest."""
    return replace(manifest, kernels=tuple(replace(x, **changes) for x in manifest.kernels))


def without_grids(table: DispatchTable) -> DispatchTable:
    """Return a table as a manifest's file has it: its grids are in the library."""
    return replace(table, sections=tuple(replace(x, grid=NO_GRID) for x in table.sections))


def with_grids(read: Manifest, manifest: Manifest) -> Manifest:
    """Give a manifest that was read from a file, whose sections have no grids, those of another."""
    tables = []
    for table, other in zip(read.tables, manifest.tables, strict=True):
        both = zip(table.table.sections, other.table.sections, strict=True)
        tables.append(replace(table, table=DispatchTable(tuple(replace(x, grid=y.grid) for x, y in both))))
    return replace(read, tables=tuple(tables))


def round_trip(manifest: Manifest) -> Manifest:
    """Write a manifest and read it; its grids are not in the file, and stay as they are."""
    return with_grids(from_json(to_json(manifest)), manifest)
