"""What `patch` and `quantize` report."""

from __future__ import annotations

from dataclasses import dataclass, field


def _named(reasons: dict[str, str]) -> list[str]:
    return [f"  {name or 'the model itself'}: {reason}" for name, reason in reasons.items()]


@dataclass(frozen=True)
class PatchReport:
    """What `patch` did, by the names of modules."""

    swapped: tuple[str, ...]
    """Those that compute by the package since this call."""
    already: tuple[str, ...]
    """Those that did before."""
    left: dict[str, str]
    """The other nn.Linear's, and why each was left as it is."""
    is_constant: bool = False
    """Whether the caller has promised that nobody writes the weights of those swapped while they are in use."""
    others: dict[str, str] = field(default_factory=dict)
    """Modules that hold batches of matrices, as of experts, in no nn.Linear, which is all that is swapped."""
    times_us: dict[int, float] = field(default_factory=dict)
    """By rows of x: the sum of the table's times of the products of those swapped, one after the other, where it has
    each. They are the table's, by its measurements or predictions, and not taken here."""

    def __str__(self) -> str:
        """Write one line of numbers, and one for each module that was left."""
        lines = [f"{len(self.swapped)} swapped, {len(self.already)} were already, {len(self.left)} left"]
        if self.is_constant:
            lines.append("their weights are promised to be constant: nobody may write them while they are in use")
        if self.times_us:
            times = ", ".join(f"{time:.1f} us at {m} rows" for m, time in self.times_us.items())
            lines.append(f"the products of those swapped take, by the table's times: {times}")
        return "\n".join([*lines, *_named({**self.left, **self.others})])


@dataclass(frozen=True)
class QuantizeReport:
    """What `quantize` did, by the names of modules."""

    format: str
    """The format that weights are held in."""
    quantized: tuple[str, ...]
    """Those whose weights are since this call."""
    already: tuple[str, ...]
    """Those whose weights were before, in whatever format."""
    left: dict[str, str]
    """The other nn.Linear's and modules of experts, and why each was left as it is."""
    bytes_before: int
    """Of the model's parameters and buffers, each counted once."""
    bytes_after: int
    """The same behind this call."""
    by_torch: tuple[str, ...] = ()
    """Those whose inputs torch rounds, since the wheel has no kernel for that."""
    is_constant: bool = False
    """Whether the caller has promised that nobody writes the weights while they are in use."""

    def __str__(self) -> str:
        """Write lines of numbers, and one for each module that was left."""
        counts = f"{len(self.quantized)} quantized, {len(self.already)} were already, {len(self.left)} left"
        lines = [f"{counts}; weights are {self.format}, and results differ by that"]
        lines.append(f"the model's tensors take {_mib(self.bytes_after)}; before {_mib(self.bytes_before)}")
        if self.is_constant:
            lines.append("their weights are promised to be constant: nobody may write them while they are in use")
        if self.by_torch:
            lines.append(f"torch rounds the inputs of {len(self.by_torch)}, for which the wheel has no kernel")
        return "\n".join([*lines, *_named(self.left)])


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
