"""The pointer by which a load takes another TMA descriptor than its own. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import Int64, cute
from cutlass.tensor_utils import TensorMapManager, TensorMapUpdateMode

DESCRIPTOR_BYTES = 128
"""Of a TMA descriptor. Source: CUDA driver API, CUtensorMap."""


def pointer_to_descriptor(address: Any) -> Any:
    """Make a pointer to the descriptor at a generic address, Int64; to be called while tracing."""
    pointer = cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=8)
    manager = TensorMapManager(TensorMapUpdateMode.GMEM, DESCRIPTOR_BYTES)
    return manager.get_tensormap_ptr(pointer, cute.AddressSpace.generic)
