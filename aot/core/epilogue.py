"""What a kernel does between the accumulator and the rounding of D: the steps, and the epilogues that there are."""

from __future__ import annotations

from enum import Enum

from aot.core.constraints import Word


class Step(Enum):
    """One step of an epilogue, in float32, between the accumulator and the rounding of D.

    The order is fixed: D = cast(activation(accumulator * scale_a * scale_b + bias) + residual); a factor of whole
    tensors is one of the scales. A gate takes two such sums, of the gate's and of the linear half of B's rows, and
    multiplies the activation of the first by the second.
    """

    SCALE = "scale"
    """Multiplies row i by the i-th factor of A and column j by the j-th of B: float32, or one factor for all."""
    BIAS = "bias"
    """Adds a vector of n elements, one to each column of D."""
    RELU = "relu"
    """max(x, 0); a NaN stays one."""
    GELU = "gelu"
    """x * (1 + erf(x / sqrt(2))) / 2."""
    GELU_TANH = "gelu_tanh"
    """GELU by tanh, as torch.nn.functional.gelu(approximate="tanh") has it."""
    SILU = "silu"
    """x / (1 + exp(-x))."""
    RESIDUAL = "residual"
    """Adds a matrix (m, n) of D's type."""
    SWIGLU = "swiglu"
    """silu(gate) * linear; B holds twice n rows."""
    GEGLU = "geglu"
    """gelu_tanh(gate) * linear; B holds twice n rows."""
    MANY = "many"
    """The n rows of B are those of several weights, each a matrix of its own, and the columns of D and the bias too."""


ACTIVATIONS = (Step.RELU, Step.GELU, Step.GELU_TANH, Step.SILU)
GATES = (Step.SWIGLU, Step.GEGLU)


class Epilogue(Word):
    """The steps between the accumulator and D, in order; the value is the epilogue's part of a tag.

    All but the first take a bias. Only `bias` needs one: the others add nothing where there is none.
    """

    NONE = "none"
    BIAS = "bias"
    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"
    RESIDUAL = "residual"
    SWIGLU = "swiglu"
    GEGLU = "geglu"
    MANY = "many"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in order."""
        if self in (Epilogue.NONE, Epilogue.BIAS):
            return () if self is Epilogue.NONE else (Step.BIAS,)
        return (Step.BIAS, Step(self.value))


OF_ONE_WEIGHT = tuple(x for x in Epilogue if x is not Epilogue.MANY)
"""The epilogues of products whose B and D are a matrix each."""

WITHOUT_GATE = tuple(x for x in OF_ONE_WEIGHT if not {*GATES} & {*x.steps})
"""Those of one weight whose rows are no two halves."""

MAX_PARTS = 4
"""Weights of one launch, at most."""
