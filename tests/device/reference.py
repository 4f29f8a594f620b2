"""Random problems, and the float32 reference that results are held against."""

import random

TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3}
"""Relative Frobenius error that the wheel promises."""

MAX_ALIGNED_FLOPS = 3e11
MAX_FALLBACK_FLOPS = 2e10
"""Work of one test problem; the fallback runs on the CUDA cores."""


def log_uniform(rng, low, high):
    return min(high, max(low, round(low * (high / low) ** rng.random())))


def random_shape(rng, aligned):
    """Draw m from 1 to 9000 and n, k up to 16384; aligned ones have n and k of multiples of 8."""
    limit = MAX_ALIGNED_FLOPS if aligned else MAX_FALLBACK_FLOPS
    while True:
        m, n, k = (log_uniform(rng, 1, top) for top in (9000, 16384, 16384))
        if aligned:
            n, k = -(-n // 8) * 8, -(-k // 8) * 8
        if 2 * m * n * k <= limit:
            return m, n, k


def random_shapes(seed, count):
    """Draw shapes, three aligned for one that is not."""
    rng = random.Random(seed)
    return [random_shape(rng, aligned=i % 4 != 0) for i in range(count)]


def randn(*shape, dtype):
    """Return normally distributed numbers on the GPU."""
    import torch

    return torch.randn(*shape, dtype=torch.float32, device="cuda").to(dtype)


def poisoned(*shape, dtype):
    """Return a tensor of NaN on the GPU."""
    import torch

    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def error_bound(expected, k, dtype):
    """Return how far each element of a product of normally distributed operands may be from `expected`, in float32.

    Half a unit in the last place is 2^-9 of a bfloat16 and 2^-12 of a float16, of which twice and eight times is
    allowed; the sum in float32 loses less than 2^-16 for each of its k terms.
    """
    import torch

    return expected.abs() * (2**-8 if dtype is torch.bfloat16 else 2**-9) + k * 2**-16


def relative_error(result, a, b):
    """Give the Frobenius norm of result - a @ b over that of a @ b, the product in float32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    expected = a.float() @ b.float()
    norm = torch.linalg.vector_norm(expected)
    error = torch.linalg.vector_norm(result.float() - expected)
    return float(error / norm) if norm > 0 else float(error)


def repeated(launch, *, captured):
    """Launch once, and return what launches it again: the function itself, or the replay of a graph of it."""
    import torch

    launch()
    torch.cuda.synchronize()
    if not captured:
        return launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay
