"""A target: the device and host that kernels are built for, read from a data file in aot/targets/."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from types import UnionType
from typing import Any, get_args, get_type_hints

from aot.errors import TargetError
from aot.problem import Dtype


@dataclass(frozen=True)
class Target:
    """Limits and rates of one device and the host beside it. Each entry's source stands in the target's file."""

    name: str
    description: str
    arch: str
    """Architecture as ptxas names it, such as `sm_90a`."""
    compute_capability: tuple[int, int]
    num_sms: int
    smem_bytes_per_block: int
    smem_bytes_per_sm: int
    tmem_columns: int
    """Tensor memory columns an SM has (512 bytes each); 0 where the architecture has none."""
    max_threads_per_block: int
    max_threads_per_sm: int
    registers_per_sm: int
    l2_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    """Dense bf16/fp16 rate with float32 accumulation that the cost model starts from."""
    launch_us: float
    """Time from one kernel's start to the next one's in a back-to-back stream of empty kernels, in microseconds."""
    clusters: tuple[tuple[int, int], ...]
    """Cluster shapes (m, n) that candidates may use."""
    host_triple: str
    """LLVM triple of the machine that loads the wheel."""
    host_cpu: str
    """Oldest CPU that the host code must run on, as LLVM names it."""
    glibc: str
    """Oldest glibc that the wheel runs on; gives the manylinux tag."""
    integrated: bool
    """Whether the GPU shares the CPU's memory."""

    @property
    def machine(self) -> str:
        """Give the host's machine name, as `uname -m` prints it."""
        return self.host_triple.split("-")[0]

    @property
    def platform_tag(self) -> str:
        """Give the wheel's platform tag, such as `manylinux_2_28_aarch64`."""
        return f"manylinux_{self.glibc.replace('.', '_')}_{self.machine}"

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Give the element types that the families can build for it."""
        return tuple(Dtype)


def _convert(key: str, value: Any, kind: Any, where: str) -> Any:
    if key == "compute_capability":
        value = tuple(value) if isinstance(value, list) else value
    if key == "clusters":
        value = tuple(tuple(shape) for shape in value) if isinstance(value, list) else value
    base = kind.__origin__ if hasattr(kind, "__origin__") else kind
    base = get_args(kind)[0] if isinstance(kind, UnionType) else base
    if base is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, base) or (base is int and isinstance(value, bool)):
        raise TargetError(f"{where}: `{key}` is {value!r}; expected {base.__name__}; mend the entry")
    if base in (int, float) and (value < 0 or (value == 0 and key != "tmem_columns")):
        raise TargetError(f"{where}: `{key}` is {value!r}; expected a number above 0; mend the entry")
    return value


def parse_target(text: str, where: str) -> Target:
    """Read a target from TOML; unknown and missing keys are errors.

    Raises:
        TargetError: the text is not a target.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{where}: not TOML: {error}") from error
    names = [field.name for field in fields(Target)]
    wrong = sorted(set(values) ^ set(names))
    if wrong:
        raise TargetError(f"{where}: missing or unknown keys: {', '.join(wrong)}; a target has {', '.join(names)}")
    hints = get_type_hints(Target)
    return Target(**{key: _convert(key, values[key], hints[key], where) for key in names})


def target_names() -> list[str]:
    """List the targets that the package ships."""
    files = resources.files("aot").joinpath("targets").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


@cache
def load_target(name: str) -> Target:
    """Load a shipped target by name.

    Raises:
        TargetError: there is no such target, or its file is damaged.
    """
    if name not in target_names():
        raise TargetError(f"no target {name!r}; there are: {', '.join(target_names())}; see `aot targets`")
    file = resources.files("aot").joinpath("targets", f"{name}.toml")
    return parse_target(file.read_text(encoding="utf-8"), str(file))
