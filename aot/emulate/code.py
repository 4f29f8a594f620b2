"""The device code of a compiled object, as the interpreter executes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aot.core.kernel import Kernel as ProductKernel
from aot.emulate.program import Program
from aot.emulate.ptx import parse_module

if TYPE_CHECKING:
    from aot.compile.artifact import AnyKernel, Artifact
    from aot.emulate.ptx import Kernel


@dataclass(frozen=True)
class DeviceCode:
    """The device code of one object: what a launch of one of its kernels executes."""

    name: str
    """The kernel's name in the library."""
    text: str
    """The PTX."""
    registers: int
    """Of a thread, as the assembler allocated them."""
    waits: bool = False
    """Whether its CTAs wait for each other, so that all must be resident."""
    mutant: Kernel | None = None
    """A kernel of the module that is executed in place of the one that has its name."""

    @staticmethod
    def of(artifact: Artifact[AnyKernel]) -> DeviceCode:
        """Read that of a compiled kernel."""
        kernel, text = artifact.kernel, artifact.ptx_path.read_text("utf-8")
        waits = isinstance(kernel, ProductKernel) and kernel.workspace.waits
        return DeviceCode(kernel.name, text, kernel.registers, waits)

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Parse the kernels of the module, by the names that launches have.

        Raises:
            CompileError: the text is no PTX of the kind that the toolchain writes.
        """
        kernels = parse_module(self.text)
        return kernels if self.mutant is None else kernels | {self.mutant.name: self.mutant}

    @cached_property
    def programs(self) -> dict[str, Program]:
        """Make what the machine executes of the kernels, by the same names.

        Raises:
            UnknownInstructionError: the interpreter does not know an instruction.
        """
        return {name: Program(kernel) for name, kernel in self.kernels.items()}
