"""How often a product is of values of the past, by who writes its weight or x just in front of it.

    python -m tests.device.adversaries [trials]      # from the repository's root, with the wheel, torch and Triton

prints a row for each case: case, mode, trials, stale. tests/device/test_stale.py runs the same cases.
tests/device/scene.py says what each mode promises.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aot_gemm
import torch

from tests.device import orders, writers
from tests.device.scene import (
    BEHIND,
    BROKEN_SEEN,
    BROKEN_UNSEEN,
    DEFAULT,
    MODES,
    PROMISE,
    PROMISE_X,
    TORCH,
    Scene,
    Setting,
    Shape,
    UnfitError,
    chain_shape,
    count_stale,
    early_shape,
)
from tests.device.writers import elsewhere, optimizer, stand, triton

TRIALS = 200
KEPT = (DEFAULT, BEHIND, PROMISE, PROMISE_X)
SEEN = (*KEPT, BROKEN_SEEN)


@dataclass(frozen=True)
class Case:
    """Who writes in front of a product, in one or more steps."""

    name: str
    steps: tuple[writers.Step, ...]
    order: orders.Order = orders.in_order
    modes: tuple[str, ...] = KEPT
    device: int = 0
    is_core: bool = False
    """Whether it is run with other products, too."""
    shape: Shape | None = None
    is_chain: bool = False
    """Whether the weight is of the shape that a long product of this library makes."""

    def fit(self, setting: Setting) -> Setting:
        """Choose shape and GPU.

        Raises:
            UnfitError: there is none.
        """
        if self.device >= torch.cuda.device_count():
            raise UnfitError(f"GPUs: {torch.cuda.device_count()}; expected {self.device + 1}")
        if setting.mode == BROKEN_UNSEEN and os.environ.get("AOT_GEMM_WEIGHT_PREFETCH") == "0":
            raise UnfitError("AOT_GEMM_WEIGHT_PREFETCH=0: no weight is read early")
        shape = self.shape or setting.shape or early_shape(setting.dtype, 1)
        if self.is_chain:
            shape = (1, *chain_shape(setting.dtype)[:2])
        return replace(setting, shape=shape, device=self.device)


def _chains():
    """List what this library alone can do, small and with blocks that leave room for their successors."""
    for size, own in (("", writers.own_product), (" long", writers.own_long_product)):
        case = partial(Case, is_chain=bool(size))
        made = f"w ={size} linear"
        for constant in (False, True):
            make_x, other = (partial(step, constant=constant) for step in (writers.make_x, writers.other_layer))
            layer = "linear by a constant" if constant else "linear"
            natural = (DEFAULT, BEHIND, PROMISE)
            yield case(f"{made}; h = {layer}; linear(h, w)", (own, make_x), modes=natural)
            yield case(f"{made}; h = {layer}; linear(h, w); in a graph", (own, make_x), orders.in_graph, modes=natural)
            yield case(f"{made}; {layer} of another layer", (own, other))
            yield case(f"{made}; {layer} of another layer; in a graph", (own, other), orders.in_graph)
            yield case(f"{made}; {layer} on a second stream", (own, elsewhere(other)))
        yield case(made, (own,), modes=SEEN, is_core=not size)
        yield case(f"{made}, in another thread", (own,), orders.in_thread)
        yield case(f"{made}, multiplied in another thread", (own,), orders.multiplied_in_thread)
        yield case(f"{made}, on a second stream, event", (own,), orders.on_side_stream)
        yield case(f"{made}; three layers", (own, *[writers.other_early_layer] * 3))
    yield Case("w = matmul", (writers.own_matmul,))
    yield Case("w = linear of split k", (writers.own_split_product,), shape=(1, 256, 512))
    yield Case("w = linear(linear(u, v1), v2)", (writers.own_product_of_product,))


def _by_torch():
    for name, step in (
        ("copy_ of one type (memcpy)", writers.memcpy),
        ("copy_ from float32 (elementwise)", writers.convert),
        ("copy_ from pinned host memory", writers.from_host),
        ("copy_ of one number", writers.broadcast),
        ("zero_, add_", writers.arithmetic),
        ("index_copy_", writers.indexed),
        ("_foreach_copy_", writers.foreach),
        ("load_state_dict", writers.load_state_dict),
        ("int8 times a scale", writers.dequantise),
        ("torch.mm(out=)", writers.torch_product),
        ("backward, SGD foreach", optimizer(torch.optim.SGD, foreach=True)),
        ("backward, Adam foreach", optimizer(torch.optim.Adam, foreach=True)),
    ):
        yield Case(name, (step,), modes=SEEN, is_core=step is writers.memcpy)
    case = partial(Case, modes=SEEN)
    big = (1, 16384, 4096)
    yield case("copy_ of one type, 128 MiB", (writers.memcpy,), shape=big)
    yield case("copy_ from float32, 128 MiB", (writers.convert,), shape=big)
    yield case("copy_ from float32; linear", (writers.convert, writers.other_early_layer))
    yield case("copy_ of one type, in a graph", (writers.memcpy,), orders.in_graph)
    yield case("copy_ from float32, in a graph", (writers.convert,), orders.in_graph)
    yield case("copy_ from float32, second stream, event", (writers.convert,), orders.on_side_stream)
    yield case("copy_ from float32, another thread", (writers.convert,), orders.in_thread)
    yield case("copy_ from float32, all on a side stream", (writers.convert,), orders.on_one_side_stream)
    # What follows torch's version counter does not see.
    yield Case(".data.copy_", (writers.data_alias,))
    yield Case("backward, SGD fused", (optimizer(torch.optim.SGD, fused=True),))
    yield Case("backward, Adam fused", (optimizer(torch.optim.Adam, fused=True),))


def _by_triton():
    early, layer = triton(early=True), writers.other_early_layer
    yield Case("Triton, 20 us", (triton(early=False, us=20),))
    yield Case("Triton, 200 us", (triton(early=False),))
    yield Case("Triton that triggers, 20 us", (triton(early=True, us=20),))
    yield Case("Triton that triggers", (early,), is_core=True)
    yield Case("Triton that triggers, 132 blocks", (triton(early=True, blocks=132),))
    yield Case("Triton that triggers; linear", (early, writers.other_layer), is_core=True)
    yield Case("Triton that triggers; linear by a constant", (early, layer), is_core=True)
    yield Case("Triton that triggers; linear by a constant; in a graph", (early, layer), orders.in_graph)
    yield Case("Triton that triggers; three linears by constants", (early, layer, layer, layer))
    yield Case("Triton that triggers; linear on a second stream", (early, elsewhere(layer)))
    yield Case("Triton that triggers, in a graph", (early,), orders.in_graph, is_core=True)
    yield Case("Triton that triggers, a graph each", (early,), orders.in_two_graphs)
    yield Case("Triton that triggers, second stream, event", (early,), orders.on_side_stream)
    joined = partial(orders.in_graph, order=orders.on_side_stream)
    yield Case("Triton that triggers, second stream, event, in a graph", (early,), joined)
    yield Case("Triton that triggers, all on a side stream", (early,), orders.on_one_side_stream)
    yield Case("Triton that triggers, another thread", (early,), orders.in_thread)
    yield Case("Triton that triggers, another thread and stream, event", (early,), orders.in_thread_on_side_stream)
    yield Case("Triton that triggers, multiplied in another thread", (early,), orders.multiplied_in_thread)
    yield Case("Triton that triggers, launched early", (triton(early=True, pdl=True),))
    yield Case("Triton that triggers, then waits", (triton(early=True, wait=True, pdl=True),))
    yield Case("int8 by Triton that triggers", (writers.triton_dequantise,))
    yield Case(".data = what Triton still writes", (writers.triton_new_storage,), modes=(DEFAULT, BROKEN_SEEN))
    for triggers, waits in ((False, False), (True, False), (False, True), (True, True)):
        between = stand(early=triggers, wait=waits)
        how = ("triggers, " if triggers else "") + ("waits" if waits else "never waits")
        name = f"Triton that triggers; Triton that {how}"
        yield Case(name, (early, between), is_core=not waits)
        yield Case(f"{name}; in a graph", (early, between), orders.in_graph)
    twice = [stand(early=True, wait=False)] * 2
    yield Case("Triton that triggers; two that never wait", (early, *twice))
    yield Case("Triton that triggers; two that never wait; linear", (early, *twice, layer))


def _by_two_gpus():
    case = partial(Case, device=1)
    yield case("copy_ from GPU 0, which is current", (writers.from_first_gpu,))
    yield case("copy_ from GPU 0", (writers.from_first_gpu,), orders.on_current_gpu)
    yield case("Triton that triggers; GPU 0 current", (triton(early=True),), orders.across_gpus)
    yield case("w = linear; GPU 0 current", (writers.own_product,))


CASES = (*_by_torch(), *_by_triton(), *_chains(), *_by_two_gpus())
CONTROLS = (Case("control: Triton that triggers", (triton(early=True),), modes=(BROKEN_UNSEEN,)),)
"""Promises broken behind torch's back: stale, or the suite cannot see. In a graph a product behind another's kernel is
launched ordinarily, and no such promise shows (tests/device/test_edges.py)."""

PRODUCTS = (
    Setting(dtype=torch.float16, shape=(16, 256, 1024)),
    Setting(shape=(16, 4096, 4096)),
    Setting(product="matmul"),
    Setting(product="matmul", dtype=torch.float16, shape=(16, 1024, 1024)),
)
"""What core cases are run with, too."""


def settings_of(case: Case) -> list[Setting]:
    products = (Setting(shape=None), *(PRODUCTS if case.is_core else ()))
    return [replace(product, mode=mode) for product in products for mode in case.modes]


@dataclass(frozen=True)
class Row:
    """What one case came to."""

    case: str
    mode: str
    product: str
    kernel: str
    trials: int
    stale: int | None
    """None where the case could not be made."""
    note: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the count is what it must be: 0, or most of a control's trials."""
        if self.stale is None:
            return self.note.startswith("left out")
        return self.stale * 2 > self.trials if self.mode == BROKEN_UNSEEN else self.stale == 0


def run(case: Case, setting: Setting, trials: int = TRIALS) -> Row:
    """Run a case.

    Raises:
        UnfitError: it cannot be made here.
    """
    setting = case.fit(setting)
    with torch.no_grad():
        scene = Scene(setting)
        steps = [step(scene) for step in case.steps]
        launch = case.order(scene, lambda: [step() for step in steps])
        stale = count_stale(scene, launch, trials)
    return Row(case.name, setting.mode, str(setting), setting.kernel, trials, stale)


def left_out(case: Case, setting: Setting, error: UnfitError) -> Row:
    """Return the row of a case that cannot be made here."""
    return Row(case.name, setting.mode, str(setting), "", 0, None, f"left out: {error}")


def table(rows: list[Row]) -> str:
    """Write a line for each row: case, mode, trials, stale, and what multiplied."""
    head = ("case", "mode", "trials", "stale", "product", "kernel")
    cells = [
        (x.case, x.mode, x.trials, "-" if x.stale is None else x.stale, x.product, x.kernel or x.note) for x in rows
    ]
    texts = [[str(cell) for cell in line] for line in (head, *cells)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in texts)
    return "\n".join(line.rstrip() for line in lines)


def write_json(path: str, rows: list[Row]) -> None:
    """Write the rows, and what they were run on."""
    what = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "aot_gemm": aot_gemm.__version__}
    Path(path).write_text(json.dumps(what | {"rows": [vars(row) for row in rows]}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run from the command line: 1 if a product was stale that must not be, or a control was not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trials", nargs="?", type=int, default=TRIALS)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--mode", choices=MODES, help="only this mode; `torch` runs torch's product instead")
    parser.add_argument("--json", help="write the rows to this file, too")
    options = parser.parse_args()
    rows = []
    for case in (x for x in (*CASES, *CONTROLS) if options.case in x.name):
        settings = settings_of(case)
        if options.mode == TORCH:
            settings = [replace(x, mode=TORCH) for x in settings if x.mode == DEFAULT]
        for setting in (x for x in settings if options.mode in {None, x.mode}):
            try:
                rows.append(run(case, setting, options.trials))
            except UnfitError as error:
                rows.append(left_out(case, setting, error))
            except Exception as error:  # noqa: BLE001 - one case that fails does not hide the others
                note = f"{type(error).__name__}: {error}"
                rows.append(Row(case.name, setting.mode, str(setting), "", 0, None, note))
            print(f"{len(rows)}: {rows[-1]}", file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        write_json(options.json, rows)
    num_wrong = sum(not row.is_right for row in rows)
    print(f"{len(rows)} rows, {num_wrong} not as they must be")
    return 1 if num_wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
