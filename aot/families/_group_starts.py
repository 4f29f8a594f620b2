"""Where the groups of a grouped product start, as a kernel reads it. Imports CUTLASS.

The ends of the groups lie on the device, where an earlier kernel may have written them: nothing of them is read before
that kernel has ended, and whatever they are, no group reaches past the rows that there are.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Int32


class Starts:
    """Where the groups start in what is grouped: one more element than there are groups, the last one where they end.

    It stands where quack takes a tensor of them.
    """

    def __init__(self, offsets: Any, num_groups: Any, extent: Any) -> None:
        """Keep what they are computed from.

        Args:
            offsets: int32 on the device, where each group ends; with one element more, where the first one starts
                stands in front.
            num_groups: Int32.
            extent: Int32, of what is grouped: rows, or k.
        """
        self.offsets, self.num_groups, self.extent = offsets, num_groups, extent

    @property
    def shape(self) -> tuple[Any]:
        """Return the number of elements."""
        return (self.num_groups + 1,)

    def __getitem__(self, group: Any) -> Any:
        """Return where a group starts, from 0 to the extent."""
        position = group + self.offsets.shape[0] - self.num_groups - 1
        read = self.offsets[cutlass.max(position, 0)]
        inside = cutlass.min(cutlass.max(read, 0), self.extent)
        return cutlass.select_(position < 0, Int32(0), inside)

    def __extract_mlir_values__(self) -> list[Any]:
        """Return the values of which it is made, as CuTe DSL asks for."""
        return [value for part in self._parts() for value in cutlass.extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: list[Any]) -> "Starts":
        """Make it of other values of the same kinds, as CuTe DSL asks for."""
        made = []
        for part in self._parts():
            size = len(cutlass.extract_mlir_values(part))
            made.append(cutlass.new_from_mlir_values(part, values[:size]))
            values = values[size:]
        return Starts(*made)

    def _parts(self) -> tuple[Any, Any, Any]:
        return self.offsets, self.num_groups, self.extent
