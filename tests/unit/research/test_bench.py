"""What the bench calls untuned is untuned. bench.py needs a GPU and the wheel, so its list is read from its text."""

import ast
from pathlib import Path

from aot.core.operation import ELEMENTS, Operation
from aot.core.shape_set import load_shape_set

BENCH = Path(__file__).parents[3] / "research" / "bench" / "bench.py"
TUNED = ("representative", "atlas")


def assigned(name):
    (value,) = [
        node.value
        for node in ast.parse(BENCH.read_text()).body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    ]
    return ast.literal_eval(value)


def test_untuned_shapes_are_of_weights_that_no_tuning_saw():
    operations = [Operation.of(dtype) for dtype in ELEMENTS]
    tuned = {(x.n, x.k) for name in TUNED for operation in operations for x in load_shape_set(name).problems(operation)}
    assert not tuned & {shape[1:] for shape in assigned("UNTUNED")}
    assert tuned >= set(assigned("WEIGHTS"))
