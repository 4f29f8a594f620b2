"""The formulas of the fallback's activations, on numpy's float32 in place of registers."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import erf, erfc

from aot.core.epilogue import ACTIVATIONS, GATES, Step
from aot.families import _epilogue_steps as steps

pytestmark = pytest.mark.slow

X = np.linspace(-12, 12, 4801, dtype=np.float32)

EXACT = {
    Step.RELU: lambda x: np.maximum(x, 0),
    Step.GELU: lambda x: np.where(x < 0, x * erfc(-x / np.sqrt(2)) / 2, x * (1 + erf(x / np.sqrt(2))) / 2),
    Step.GELU_TANH: lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    Step.SILU: lambda x: x / (1 + np.exp(-x)),
}
EXACT |= {Step.SWIGLU: EXACT[Step.SILU], Step.GEGLU: EXACT[Step.GELU_TANH]}
BOUND = 8 * 2.0**-24
"""Eight roundings of float32: the cube and its factors take five."""


@pytest.fixture
def activate(monkeypatch):
    monkeypatch.setattr(steps, "_math", SimpleNamespace(exp=np.exp, erfc=lambda x: erfc(x).astype(np.float32)))
    monkeypatch.setattr(steps, "Float32", np.asarray)
    fmax = SimpleNamespace(arch=SimpleNamespace(fmax=lambda x, y, nan: np.maximum(x, np.float32(y)) if nan else None))
    monkeypatch.setattr(steps, "cute", fmax)
    return lambda step, x: steps.FUNCTIONS[step](np.asarray(x, np.float32))


@pytest.mark.parametrize("step", [*ACTIVATIONS, *GATES])
def test_activations_are_as_exact_as_float32(activate, step):
    """An argument of exp or erfc that is rounded changes the result by as much as the argument is large, squared."""
    got, exact = activate(step, X), EXACT[step](X.astype(np.float64))
    assert got.dtype == np.float32
    argument = 1 + X.astype(np.float64) ** (4 if step in (Step.GELU_TANH, Step.GEGLU) else 2)
    overflow = np.abs(X) / np.finfo(np.float32).max  # where 1 + exp(-y) is infinite, the quotient is zero
    assert (np.abs(got - exact) <= BOUND * np.where(X < 0, argument, 1) * np.abs(exact) + overflow).all()


@pytest.mark.parametrize("step", [*ACTIVATIONS, *GATES])
def test_a_nan_stays_one_and_large_values_are_kept(activate, step):
    with np.errstate(over="ignore"):
        nan, large, small = activate(step, [np.nan, 1e30, -1e10])
    assert np.isnan(nan)
    assert (large, abs(small)) == (np.float32(1e30), 0)
