"""What measuring needs of a GPU and of a kernel library: two seams, each with an in-memory twin in the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from aot.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.numerics import Bits
    from aot.core.work import AnyOperation
    from aot.kinds.trial import AnyCall, Baseline

Handle: TypeAlias = Any
"""What the device or the library gives to be handed back to it: a graph, a bound call."""


class ContextLostError(DeviceError):
    """An error after which this process cannot use the GPU any more; another process can."""


class OutOfMemoryError(DeviceError):
    """Too little device memory: nothing that a kernel is to blame for."""


class Gpu(Protocol):
    """One device and one stream of our own; addresses are plain integers, sizes are in bytes."""

    @property
    def stream(self) -> int:
        """Return the handle of the stream that everything runs on."""

    @property
    def l2_bytes(self) -> int:
        """Return the size of the L2 cache."""

    def alloc(self, num_bytes: int) -> int:
        """Allocate device memory, aligned to 256 bytes."""

    def free(self, address: int) -> None:
        """Free what `alloc` gave."""

    def upload(self, address: int, bits: Bits) -> None:
        """Copy a contiguous host array to the device and wait for it."""

    def download(self, address: int, bits: Bits) -> None:
        """Copy from the device into a contiguous host array and wait for it."""

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from device to device, in stream order."""

    def fill(self, address: int, value: int, num_bytes: int) -> None:
        """Set every byte to `value`, in stream order."""

    def launch_separator(self) -> None:
        """Put a small kernel on the stream that takes no part in programmatic dependent launch.

        The first call is not to be captured: it may load the kernel.
        """

    def synchronize(self) -> None:
        """Wait for the stream."""

    def time_us(self, launch: Callable[[], None]) -> float:
        """Time what `launch` puts on the stream, in microseconds."""

    def flushed_us(self, launch: Callable[[int], None], count: int, flush: int, flush_bytes: int) -> list[float]:
        """Time each of `count` launches alone, in microseconds, after a write of `flush_bytes` at `flush`."""

    def capture(self, launch: Callable[[], None]) -> Handle:
        """Record what `launch` puts on the stream as a graph that can be replayed."""

    def replay_us(self, graph: Handle, *, warms_up: bool = True) -> float:
        """Replay a graph, after another time to warm up if so told, and time it, in microseconds."""

    def destroy(self, graph: Handle) -> None:
        """Free a graph."""

    def is_lost(self) -> bool:
        """Say whether the context is beyond use after an error."""


class Kernels(Protocol):
    """A library of kernels that take any problem of their operation.

    A kernel is told by its index. `order * len(names)` more is the kernel with its tiles in another order, of
    aot.core.tile_order.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Return the kernels' names in the order of their index."""

    def bind(self, call: AnyCall, *, b_is_constant: bool = False) -> Handle:
        """Prepare a call once, so that launching it costs little.

        Args:
            call: operands and sizes.
            b_is_constant: promise that nothing writes B meanwhile.
        """

    def workspace_bytes(self, kernel: int, bound: Handle) -> int:
        """Return the workspace that a kernel needs for a call."""

    def max_active_clusters(self, kernel: int, bound: Handle, workspace: int, workspace_bytes: int) -> int | None:
        """Return how many of a kernel's clusters the device can run at once for a call; None without clusters."""

    def launch(self, kernel: int, bound: Handle, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a kernel on the stream.

        Raises:
            DeviceError: the library refused the call or the launch failed.
        """


class Library(Kernels, Protocol):
    """A library whose own product is timed beside the kernels: its only kernel."""

    def baseline(self, operation: AnyOperation) -> Baseline | None:
        """Return what it has for an operation; None where it has nothing."""
