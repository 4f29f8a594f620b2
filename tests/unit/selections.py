"""A selection of two kernels, as `aot select` makes it."""

from __future__ import annotations

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.select import selector
from aot.select.selection import SELECTION_VERSION, Selection
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS

PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
SELECTION = Selection(
    SELECTION_VERSION,
    "h200",
    "measured",
    "mine",
    (CONDITIONS,),
    (),
    (),
    (),
    (selector.fallback_key(Operation.BF16_KK, load_target("h200")), KernelKey(BF16, PLAIN)),
    DispatchTable((Section(BF16, (), Grid((1,), (1,), (Column((1,), (1,)),)), 0),)),
)
