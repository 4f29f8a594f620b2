"""A platform of vLLM's for a GPU without vLLM's compiled part: its layers, and none of its kernels.

Every import of vLLM asks the entry points `vllm.platform_plugins`; `register_platform` adds one for this process.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

NAME = "research.bench.vllm_platform"


def platform() -> str:
    """Return the name of the class, as vLLM asks a plug-in for it."""
    return f"{NAME}.GpuPlatform"


def register_platform() -> None:
    """Have vLLM find the platform by an entry point; before anything of vLLM's is imported."""
    folder = Path(tempfile.mkdtemp(prefix="aot-vllm-platform-"), "aot_bench_platform-1.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: aot-bench-platform\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[vllm.platform_plugins]\naot_bench = {NAME}:platform\n")
    sys.path.append(str(folder.parent))


def __getattr__(name: str) -> type:
    """Make the class where vLLM asks for it: its base is vLLM's."""
    if name != "GpuPlatform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class GpuPlatform(Platform):
        """A GPU of CUDA's, of which vLLM knows nothing more."""

        _enum = PlatformEnum.OOT
        device_name, device_type, dispatch_key = "cuda", "cuda", "CUDA"
        dist_backend = "gloo"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            """Return what torch says."""
            return DeviceCapability(*torch.cuda.get_device_capability(device_id))

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            """Return what torch says."""
            return torch.cuda.get_device_name(device_id)

        @classmethod
        def import_kernels(cls) -> None:
            """Import nothing."""

    globals()[name] = GpuPlatform
    return GpuPlatform
