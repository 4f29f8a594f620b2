"""A target: the device and host that kernels are built for, read from a file of aot/targets/ or another package."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import Arch, Count, Grammar, Identifier, Label, Positive, Rate, TargetName, Text
from aot.core.element import ElementType
from aot.core.errors import TargetError
from aot.core.feature import Feature
from aot.core.knobs import Cluster
from aot.core.strict_toml import TomlError, parse_toml

if TYPE_CHECKING:
    from importlib.abc import Traversable  # deprecated from Python 3.12 on, where importlib.resources.abc has it

    from aot.core.operation import Operation

Triple = Annotated[str, Grammar(r"[a-z0-9_]+(-[a-z0-9_.]+){1,3}", "an LLVM triple, such as x86_64-unknown-linux-gnu")]
Cpu = Annotated[str, Grammar(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a CPU as LLVM names it, such as x86-64-v2")]
Glibc = Annotated[str, Grammar(r"[0-9]{1,3}\.[0-9]{1,3}", "a version of glibc, such as 2.28")]


RATES = {
    ElementType.BFLOAT16: "flops_per_s",
    ElementType.FLOAT16: "flops_per_s",
    ElementType.E4M3: "fp8_flops_per_s",
    ElementType.E5M2: "fp8_flops_per_s",
    ElementType.E2M1: "fp4_flops_per_s",
    ElementType.INT8: "int8_flops_per_s",
    ElementType.TFLOAT32: "tf32_flops_per_s",
    ElementType.FLOAT32: "fp32_flops_per_s",
}
"""The figure of a target that is the peak rate of products of A's element type."""


@dataclass(frozen=True)
class Target:
    """Limits and rates of one device and the host beside it."""

    name: TargetName
    description: Text
    arch: Arch
    """Architecture as ptxas names it, such as `sm_90a`."""
    compute_capability: tuple[Count, Count]
    features: tuple[Feature, ...]
    """What the chip's instructions can do: which families can compile for it."""
    num_sms: Positive
    smem_bytes_per_block: Positive
    smem_bytes_per_sm: Positive
    tmem_columns: Count
    """Tensor memory columns an SM has (512 bytes each); 0 where the architecture has none."""
    max_threads_per_block: Positive
    max_threads_per_sm: Positive
    registers_per_sm: Positive
    l2_bytes: Positive
    bandwidth_bytes_per_s: Rate
    flops_per_s: Rate
    """Dense bf16/fp16 rate with float32 accumulation that the cost model starts from."""
    int8_flops_per_s: Rate
    """The same of int8, in operations."""
    tf32_flops_per_s: Rate
    fp32_flops_per_s: Rate
    """Of the CUDA cores, which alone multiply fp32 exactly: a multiplication and an addition each."""
    clock_hz: Rate
    """Clock of the SMs under load, which L2's rate is taken from."""
    launch_us: Rate
    """Time from one kernel's start to the next one's in a back-to-back stream of empty kernels, in microseconds."""
    clusters: tuple[tuple[Cluster, Cluster], ...]
    """Cluster shapes (m, n) that candidates may use."""
    active_clusters: tuple[tuple[Positive, Positive], ...]
    """Clusters of a size, in CTAs, that the device holds at once, each CTA with an SM to itself: (size, number). Only
    sizes of which it holds fewer than its SMs would give: the CTAs of a cluster are on SMs of one GPC."""
    host_triple: Triple
    """LLVM triple of the machine that loads the wheel."""
    host_cpu: Cpu
    """Oldest CPU that the host code must run on, as LLVM names it."""
    glibc: Glibc
    """Oldest glibc that the wheel runs on; gives the manylinux tag."""
    integrated: bool
    """Whether the GPU shares the CPU's memory."""
    device_names: tuple[Label, ...]
    """What CUDA calls the device, less the profile of a MIG slice. By them and `num_sms` a wheel knows the device."""
    nominal_bandwidth_bytes_per_s: Rate
    """What the data sheet gives, and the driver's memory clock and bus width come to: a wheel knows by it which of its
    devices another one is nearest to. Unlike `bandwidth_bytes_per_s` it is no rate that a kernel reaches."""
    sources: dict[Identifier, Text] = field(hash=False, compare=False)
    """Where each number, and what else needs to be said, comes from, by the entry's name."""
    fp8_flops_per_s: Rate | None = None
    """The dense rate of FP8, with sums left in the tensor cores' accumulator; None where they multiply no FP8."""
    fp4_flops_per_s: Rate | None = None
    """The dense rate of FP4 with block scale factors; None where tensor cores multiply none."""
    default_operations: tuple[Identifier, ...] | None = None
    """Tags of what a wheel by the cost model has beside the preset `default`, where nobody names operations. They
    are of any kind, and looked up where they are asked for: `aot.kinds.named_operations.default_operations`."""

    def __post_init__(self) -> None:
        """Refuse a number without a source, a source of nothing, and a rate of what a chip has not (ValueError)."""
        values = {x.name: getattr(self, x.name) for x in fields(self)}
        for feature, name, rate in (
            (Feature.FP8, "fp8", self.fp8_flops_per_s),
            (Feature.BLOCK_SCALE, "block_scale, whose rate is that of fp4,", self.fp4_flops_per_s),
        ):
            if (feature in self.features) != (rate is not None):
                raise ValueError(f"{name} is a feature, or has a rate, without the other; expected both or neither")
        missing = [name for name, value in values.items() if type(value) in (int, float) and name not in self.sources]
        strange = [name for name in self.sources if name not in values]
        if missing:
            raise ValueError(f"the number {missing[0]} has no source; expected an entry of that name in `sources`")
        if strange:
            raise ValueError(f"sources has {strange[0]}, which is no entry of a target")

    @property
    def machine(self) -> str:
        """Return the host's machine name, as `uname -m` prints it."""
        return self.host_triple.split("-")[0]

    @property
    def platform_tag(self) -> str:
        """Return the wheel's platform tag, such as `manylinux_2_28_aarch64`."""
        return f"manylinux_{self.glibc.replace('.', '_')}_{self.machine}"

    def num_clusters(self, size: int) -> int:
        """Count the clusters of `size` CTAs that the device holds at once, each CTA with an SM to itself.

        A grid of more would leave some to start when others have ended: with a persistent scheduler twice the time.
        """
        return dict(self.active_clusters).get(size, self.num_sms // size)

    def peak_flops_per_s(self, operation: Operation) -> float:
        """Return the dense rate at which an operation's products can be formed, at most.

        Where tensor cores multiply no FP8, that is the rate of fp16, in which both kinds of FP8 are exact, as FP4 is.
        """
        rate = getattr(self, RATES[operation.types.a])
        return self.flops_per_s if rate is None else float(rate)

    def lacks(self, needs: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return what the chip lacks of some features."""
        return tuple(x for x in needs if x not in self.features)


def parse_target(text: str, where: str) -> Target:
    """Read a target from TOML; unknown and missing keys are errors.

    Raises:
        TargetError: the text is not a target.
    """
    try:
        return parse_toml(text, where, Target)
    except TomlError as error:
        raise TargetError(f"{error}; mend the entry") from error


GROUP = "aot.targets"
"""Entry points of targets in other packages. One has the target's name, and its value is the package that has the file:
`orin_nano = "orin_nano"` of orin_nano/orin_nano.toml."""


@cache
def _outside() -> dict[str, EntryPoint]:
    """Find the entry points of targets, by name; nothing is imported.

    Raises:
        TargetError: one has the name of another, or of one of ours.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in found or entry.name in _own_names():
            other = f"that of {_distribution(found[entry.name])}" if entry.name in found else "one of ours"
            raise TargetError(
                f"the target {entry.name!r} of {_distribution(entry)} has the name of {other}; uninstall "
                f"{_distribution(entry)}, or name its target otherwise"
            )
        found[entry.name] = entry
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.metadata["Name"] if entry.dist else "an unnamed distribution"


def _own_names() -> list[str]:
    files = resources.files("aot").joinpath("targets").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def target_names() -> list[str]:
    """List the targets that there are: ours, and those of installed packages.

    Raises:
        TargetError: two have one name.
    """
    return sorted((*_own_names(), *_outside()))


def _file_outside(entry: EntryPoint) -> Traversable:
    """Find the file of another package's target.

    Raises:
        TargetError: it has none.
    """
    name, package, distribution = entry.name, entry.value, _distribution(entry)
    again = f"install {distribution} again, or uninstall it"
    try:
        file = resources.files(package).joinpath(f"{name}.toml")
    except Exception as error:  # whatever a package of others raises when it is imported
        fault = f"its package {package!r} cannot be imported, {type(error).__name__}: {error}"
        raise TargetError(f"the target {name!r} of {distribution} cannot be read: {fault}; {again}") from error
    if not file.is_file():
        fault = f"expected {name}.toml in its package {package!r}"
        raise TargetError(f"the target {name!r} of {distribution} has no file: {fault}; {again}")
    return file


@cache
def load_target(name: str) -> Target:
    """Load a target by name.

    Raises:
        TargetError: there is no such target, its file is damaged, or two have one name.
    """
    if name not in target_names():
        raise TargetError(f"no target {name!r}; there are: {', '.join(target_names())}; see `aot targets`")
    entry = _outside().get(name)
    file = _file_outside(entry) if entry else resources.files("aot").joinpath("targets", f"{name}.toml")
    found = parse_target(file.read_text(encoding="utf-8"), str(file))
    if found.name != name:
        raise TargetError(f"{file} is of the target {found.name!r}; expected {name}, as the file is called")
    return found
