"""What `patch` reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PatchReport:
    """What `patch` did, by the names of modules."""

    swapped: tuple[str, ...]
    """Those that have their forward through the package since this call."""
    already: tuple[str, ...]
    """Those that had it before."""
    left: dict[str, str]
    """The other nn.Linear's, and why each was left as it is."""
    fused: dict[str, str] = field(default_factory=dict)
    """The modules in which something is computed as one, and what."""
    unfused: dict[str, str] = field(default_factory=dict)
    """Those in which it could be, and why it is not."""
    is_frozen: bool = False
    """Whether the parameters of those swapped were frozen: they require no gradient, and their weights are promised to
    be constant."""
    others: dict[str, str] = field(default_factory=dict)
    """Modules that hold batches of matrices, as of experts, in no nn.Linear, which is all that is swapped."""
    padded: tuple[str, ...] = ()
    """Those whose weights have rows of zeros behind them, since theirs are no multiple of 16 bytes of a result."""
    quantised: str | None = None
    """What the weights of those swapped are quantised to."""
    norms: tuple[str, ...] = ()
    """The norms that compute by the package's kernels since this call."""
    norms_left: dict[str, str] = field(default_factory=dict)
    """The other modules that are named as norms and have a weight, and why each was left as it is."""
    gain: dict[int, float] = field(default_factory=dict)
    """By rows of x: the time of the products one by one over that of those fused, by the wheel's own table.

    It is predicted from the table's times, and not measured here; only modules count whose every time the table has.
    """
    by_torch: tuple[str, ...] = ()
    """Those whose inputs torch quantises, since the wheel has no kernel for that."""

    def __str__(self) -> str:
        """Write one line of numbers, and one for each module that was fused or left."""
        head = f"{len(self.swapped)} swapped, {len(self.already)} were already, {len(self.left)} left"
        lines = [head + (f", {len(self.fused)} modules fused" if self.fused else "")]
        if self.norms:
            lines.append(
                f"{len(self.norms)} norms swapped, {len(self.norms_left)} left; with gradients torch computes them"
            )
        if self.is_frozen:
            lines.append("their parameters are frozen: no gradients, and nobody may write them but by load_state_dict")
        if self.quantised:
            lines.append(f"their weights are held a second time, as {self.quantised} by rows; results differ by that")
        if self.by_torch:
            lines.append(f"torch quantises the inputs of {len(self.by_torch)}, for which the wheel has no kernel")
        if self.padded:
            lines.append(f"with rows of zeros: {', '.join(self.padded)}")
        if self.gain:
            speeds = ", ".join(f"{gain:.2f}x at {m} rows" for m, gain in self.gain.items())
            lines.append(f"fused products over the same one by one, predicted from the table's times: {speeds}")
        lines += [f"  {name or 'the model itself'}: fused: {what}" for name, what in self.fused.items()]
        lines += [f"  {name or 'the model itself'}: not fused: {why}" for name, why in self.unfused.items()]
        reasons = {**self.left, **self.norms_left, **self.others}
        return "\n".join([*lines, *(f"  {name or 'the model itself'}: {reason}" for name, reason in reasons.items())])
