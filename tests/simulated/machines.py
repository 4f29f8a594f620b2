"""The machines that are simulated, each with the kernels that are measured on it and what its own tools tell of it."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.target import Target, load_target
from tests.compiling import EVERY


@dataclass(frozen=True)
class Machine:
    """A machine with a GPU. Its kernels' names are candidates of BF16 with both operands along k."""

    target: Target
    gpu: str
    sound: tuple[str, str]
    """Kernels that no test gives a fault."""
    launch: str
    """The kernel whose launch fails, where a test has faults; so on for what follows."""
    sticky: str
    wrong: str
    hang: str
    clusters: str
    """The kernel whose cluster has no room."""
    cluster: str
    """That cluster."""
    few: str
    """What the names of some kernels contain."""
    power_mode: str
    sm_clock_mhz: int
    memory_clock_mhz: int
    start_s: float
    """What a run takes at most to its first launch, on a machine that does nothing else."""
    silence_s: int
    """Silence by which a hanging kernel is known: many times what the longest step takes."""
    is_emulated: bool

    @property
    def candidates(self) -> tuple[str, ...]:
        """Give the kernels that a tuning has; those with faults where tests give them some."""
        faulty = (self.launch, self.sticky, self.wrong, self.hang, self.clusters)
        return self.sound if self.is_emulated and not EVERY else (*self.sound, *faulty)


THOR = Machine(
    load_target("thor"),
    "NVIDIA Thor",
    sound=("sm100_persistent_64x32_c1x1_static", "sm100_persistent_128x128_c1x1_static_swap"),
    launch="sm100_persistent_128x128_c1x1_clc",
    sticky="sm100_persistent_128x128_c2x1_static",
    wrong="sm100_persistent_128x128_c1x2_clc",
    hang="sm100_persistent_128x128_c2x1_clc_2cta",
    clusters="sm100_persistent_128x128_c1x2_static",
    cluster="1x2",
    few="128x128_c1x1",
    power_mode="MAXN",
    sm_clock_mhz=1575,
    memory_clock_mhz=4266,
    start_s=3.0,
    silence_s=30,
    is_emulated=True,
)
"""An AArch64 Python under qemu."""

# Kernels that tests/runtime compiles in any case. Those of the last two can take their tiles in other orders, which
# would be timed too, were they among the fastest.
H200 = Machine(
    load_target("h200"),
    "NVIDIA H200",
    sound=("sm90_cluster_split_k_64x96_c1x1_direct_cluster2", "sm90_cluster_split_k_192x80_c1x1_direct"),
    launch="sm90_cluster_split_k_128x64_c1x1_direct_cluster4_swap",
    sticky="sm90_cluster_split_k_128x64_c2x1_direct_cluster2",
    wrong="sm90_cluster_split_k_128x96_c1x2_direct_cluster2_swap",
    hang="sm90_one_tile_128x96_c4x1_direct",
    clusters="sm90_quack_128x256_c2x1_cooperative",
    cluster="2x1",
    few="c1x1_direct_cluster",
    power_mode="700 W",
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    start_s=0.5,
    silence_s=8,
    is_emulated=False,
)
"""This machine's own Python and processor."""

MACHINES = {x.target.name: x for x in (H200, THOR)}
