"""The arguments of a row kernel's C entry: the family builds it from them, the manifest holds them, the runtime obeys.

Which tensors a call has is told by flags alone: of one that it does not have the kernel reads nothing, and its pointer
may be null.
"""

from __future__ import annotations

from enum import IntFlag

from aot.core.constraints import Word


class RowArgument(Word):
    """One argument. Their order in a signature is that of these lines.

    X, RESIDUAL, Y, RESIDUAL_OUT, COS, SIN, KEYS and VALUES are passed with as many strides as the kernel says: all, or
    all but the last, which is then 1. All strides are int64, in elements; all extents are int32.
    """

    X = "x"
    """Tensor (rows, cols), of a pair (rows, 2 cols), of a rotary embedding (tokens, heads, dim)."""
    RESIDUAL = "residual"
    """Tensor (rows, cols) of X's type, which is added to X."""
    WEIGHT = "weight"
    """Contiguous vector (cols) of X's type."""
    BIAS = "bias"
    """Contiguous vector (cols) of X's type."""
    COS = "cos"
    """Tensor (positions, rotary dim / 2) of X's type; token i has the row i % positions."""
    SIN = "sin"
    """The same of the sines."""
    KEYS = "keys"
    """Tensor (tokens, key heads, dim) of X's type, which is turned as X is and written to KEY_CACHE; of 0 heads where a
    call has none."""
    VALUES = "values"
    """Tensor of the shape of KEYS, which is written to VALUE_CACHE as it is."""
    Y = "y"
    """Tensor (rows, cols), of a rotary embedding (tokens, heads, dim). It may be X itself, but for pairs."""
    KEY_CACHE = "key_cache"
    """Tensor (batch, cache length, key heads, dim) of X's type, always of three strides; the last is 1. Token i, of
    the sequence i / (elements of CACHE_POSITION), is written to the position that the other part of i names."""
    VALUE_CACHE = "value_cache"
    """The same of the values."""
    RESIDUAL_OUT = "residual_out"
    """Tensor (rows, cols) of X's type: X + RESIDUAL, rounded. It may be RESIDUAL itself, or X."""
    SCALE = "scale"
    """Float32 tensor (rows, 1), of blocks (rows, blocks), of a tensor (1, 1), always of two strides: written, or read
    where it is given; then strides of 0 let one scale serve all. Factors in atoms are bytes: a row for each 128 rows of
    Y, of the bytes of their atoms, which follow one another."""
    TENSOR_SCALE = "tensor_scale"
    """Float32 vector (1): the scale of all of Y, which is given beside the factors of NVFP4."""
    OFFSETS = "offsets"
    """int32 vector (groups), or (groups + 1): where each group of rows of Y ends, perhaps with the first one's start in
    front. Atoms of factors begin anew with each: `aot.core.factor_atoms`. Rows of no group are not written."""
    INDEX = "index"
    """int32 vector (rows), beside offsets: the row of X that each row of Y is made of. What is no row of X counts as a
    row of zeros."""
    CACHE_POSITION = "cache_position"
    """int64 vector (tokens of a sequence): where each lies in the caches, below 0 counted from the end. One that lies
    outside ends the kernel."""
    EPS = "eps"
    """float32."""
    WEIGHT_OFFSET = "weight_offset"
    """float32, which is added to the weight."""
    FLAGS = "flags"
    """int32: `RowFlag`."""
    STREAM = "stream"
    """CUstream."""


class RowFlag(IntFlag):
    """Bits of the argument FLAGS. Those that an operation has no use for are ignored."""

    HAS_RESIDUAL = 1
    HAS_WEIGHT = 2
    HAS_BIAS = 4
    HAS_RESIDUAL_OUT = 8
    """X + RESIDUAL is to be written, which takes a residual."""
    SCALE_IS_GIVEN = 16
    """SCALE is read, and not computed; of rows alone."""
    IS_INTERLEAVED = 32
    """The elements of a pair, or those that are rotated together, lie side by side, and not in two halves."""
    ROUNDS_NORM = 64
    """A normalised row is rounded to X's type before it is multiplied with the weight; of an RMS norm."""
    HAS_OFFSETS = 128
    OFFSETS_START = 256
    """The offsets begin with where the first group starts."""
    HAS_INDEX = 512
    """There is an index, which takes offsets."""


RowSignature = tuple[RowArgument, ...]
