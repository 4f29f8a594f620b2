"""A receipt that no device wrote."""

from __future__ import annotations

from dataclasses import replace

from aot.bench.receipt import Machine, Product, Receipt, Wheel, sealed
from aot.core.measurement import Conditions
from aot.core.operation import Operation
from aot.core.problem import Problem

PROBLEM = Problem(Operation.BF16_KK, 16, 4096, 4096)
CONDITIONS = Conditions(
    "NVIDIA H100", "sm_90a", 132, "580.65.06 (CUDA 13.0)", 1980, 2619, "700 W", "2026-11-27", "graph-cold-l2-mixed-v3"
)
WHEEL = Wheel("aot-gemm", "0.1.0+h100", "ab" * 32, "cd" * 32, "h100", "the table of h100 is for NVIDIA H100", "12" * 32)


def product_of(wheel_us=(20.0, 20.5, 21.0), library_us=(30.0, 30.75, 31.5), problem=PROBLEM):
    return Product(problem, "bf16_kk_sm90_quack", wheel_us, "torch 2.13.0" if library_us else None, library_us)


def receipt_of(*products, wheel=WHEEL, **conditions):
    machine = Machine(replace(CONDITIONS, **conditions), "x86_64", 52428800, 1755, 2619)
    return sealed(Receipt(1, "aot 0.1.0", "2026-11-27", wheel, machine, products or (product_of(),)))
