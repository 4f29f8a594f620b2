"""What can be wrong with a kernel that is executed: faults end its execution, findings are listed beside its result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aot.core.errors import AotError


class FaultKind(Enum):
    """Why a kernel's execution cannot go on."""

    ADDRESS = "address outside of an allocation"
    ALIGNMENT = "misaligned address"
    READ_ONLY = "write to an operand that is read only"
    DEADLOCK = "deadlock"
    LIMIT = "more instructions than the limit"
    BARRIER = "misuse of a barrier"
    DIVERGENCE = "lanes that must act together are apart"
    DESCRIPTOR = "descriptor that the hardware would refuse"
    TENSOR_MEMORY = "misuse of tensor memory"
    REGISTERS = "misuse of registers"
    EXITED = "access to a CTA that has exited"
    TRAP = "trap"


class Fault(Exception):  # noqa: N818 - the field's word, for what the kernel did and not the program
    """The kernel did what it must not, and its execution ends."""

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(f"{kind.value}: {text}")
        self.kind, self.text = kind, text


class UnknownInstructionError(AotError):
    """The interpreter does not know an instruction form, and refuses to guess what it does."""

    def __init__(self, form: str, text: str, line: int) -> None:
        super().__init__(
            f"line {line}: {text}: the interpreter does not know {form}; expected one of the forms that "
            "aot/emulate/units registers: add it there, with the section of the PTX ISA that defines it"
        )
        self.form = form


class FindingKind(Enum):
    """What is wrong, or doubtful, although the execution could go on."""

    READ_BEFORE_WRITE = "read that is not ordered behind the write"
    WRITE_BEFORE_READ = "write that is not ordered behind a read"
    WRITE_BEFORE_WRITE = "write that is not ordered behind a write"
    PROXY_FENCE = "access through the async proxy with no proxy fence since the generic write"
    BARRIER_INIT = "use of an mbarrier that is not ordered behind its initialisation"
    UNINITIALISED = "read of memory that nothing has written"
    EARLY = "access before griddepcontrol.wait"
    EXIT = "exit with work in flight"
    CONVERGENCE = "lanes that are named are not all here"
    LETTER = "against the letter of the PTX ISA, and harmless on the chips that are known"

    @property
    def is_fault(self) -> bool:
        """Say whether a kernel with such a finding is wrong; the rest are notes.

        A tile's rows that are outside of the operand may be multiplied without having been loaded, as long as nobody
        stores the result: memory that nothing has written holds NaN, which shows where a result depends on it.
        """
        return self not in (FindingKind.EARLY, FindingKind.LETTER, FindingKind.UNINITIALISED)


@dataclass(frozen=True)
class Finding:
    """One kind of fault or note, at one place of a kernel."""

    kind: FindingKind
    where: str
    """Line and text of the instruction."""
    text: str
    """What the first occurrence was."""
    count: int
