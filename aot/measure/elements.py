"""Elements on a device as numpy has them. A device is described without numpy, which comes to it with the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.numerics import bits_type, unpack

if TYPE_CHECKING:
    from aot.core.element import ElementType
    from aot.core.numerics import Bits
    from aot.measure.gpu import Gpu


def download_elements(gpu: Gpu, address: int, element: ElementType, count: int) -> Bits:
    """Return elements that lie on the device, those that share bytes there each with one to itself.

    Args:
        gpu: the device.
        address: of the first byte.
        element: their type.
        count: of elements that fill whole bytes.
    """
    bits: Bits = np.empty(count // element.num_sharing, bits_type(element))
    gpu.download(address, bits)
    return bits if element.num_sharing == 1 else unpack(bits)
