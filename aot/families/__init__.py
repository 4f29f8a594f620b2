"""Kernel families, found by the entry points `aot.families` of installed distributions; ours are modules beside.

A family states its space, its own limits and its arithmetic of resources without importing CUTLASS; only `entry`
imports what it compiles. Adding a family is adding a module, its entry point and its tests, here or in another package.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from aot.core.candidate import Alignment, Workspace
from aot.core.epilogue import Epilogue
from aot.core.errors import CandidateError, FamilyError
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import KIND as GEMM
from aot.core.operation import Layout
from aot.core.signature import signature_of
from aot.families._entry_points import registrations
from aot.kinds.registry import KINDS
from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.operation import KIND as ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.core.candidate import Candidate, KernelKey, Rejected, Resources
    from aot.core.feature import Feature
    from aot.core.operation import Operation
    from aot.core.signature import Signature
    from aot.core.target import Target
    from aot.core.types import Types
    from aot.kinds.rows.candidate import RowLimits
    from aot.kinds.rows.operation import RowOperation


@dataclass(frozen=True)
class Entry:
    """What `cute.compile` takes: a `@cute.jit` function of plain tensors and a stream, and its fake arguments.

    The function's parameters are those of the kernel's signature, in its order.
    """

    function: Callable[..., None]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Binary:
    """A kernel that another compiler made: device code, and the C that launches it.

    Its family has `compilers`: the distributions on whose versions its kernels depend, in CuTe DSL's place. One of them
    is ziglang, which compiles the launcher.
    """

    image: bytes
    """Device code of the target's architecture: a cubin, which is an ELF file."""
    symbol: str
    """The kernel's name in it."""
    launcher: str
    """C11 source that defines `launch`, whose parameters are those of the kernel's signature, in its order: what it
    may use is in aot/compile/aot_launch.h."""
    num_threads: int
    """Of a block: as many as `resources` counts."""
    smem_bytes: int = 0
    """Dynamic shared memory that a launch asks for. With the static one it is no more than `resources` counts."""
    ptx: str = ""
    """What the image was assembled from, which `aot emulate` executes; empty where nobody has it."""


class Family(Protocol):
    """One kernel family, of any kind of work. Methods but `entry` are pure."""

    name: str
    """Prefix of its candidates' names."""
    kind: str
    """The kind of work, by its name in `aot.kinds`, whose protocol the family satisfies: `PROTOCOLS`."""
    knobs: type[Knobs]
    """What it sets of a kernel: a frozen dataclass, that of its kind or one of its own. One whose knobs are its own has
    a method `tiling` too, which describes a candidate in the kind's."""
    needs: tuple[Feature, ...]
    """What it asks of a chip: it compiles for every target that has all of them."""
    is_fallback: bool
    """Whether it takes any size, alignment and layout, and is therefore kept out of tuning."""

    def candidates(self, operation: Any, target: Target) -> Iterator[Candidate]:
        """Enumerate the family's space for an operation of its kind, legal or not; none if it does not compute it."""

    def check(self, candidate: Candidate, operation: Any, target: Target) -> Rejected | None:
        """Say why the family cannot build a candidate, apart from the limits that `aot.space.legality` knows."""

    def resources(self, candidate: Candidate, operation: Any, target: Target) -> Resources:
        """Count what one CTA takes. Where not even the fewest stages fit, count the fewest stages."""

    def entry(self, candidate: Candidate, operation: Any, target: Target) -> Entry | Binary:
        """Build the function to compile, or have another compiler make the kernel. Imports the kernel's library."""


class GemmFamily(Family, Protocol):
    """A family of products. One whose knobs are its own cannot order tiles."""

    num_strides: int
    """Strides an operand is passed with: 1, the leading one, or 2, both."""
    loads_outside: bool
    """Whether its loads reach past the operands' last row, which costs time (`outside_row_ns` of aot.space.cost)."""
    widens_fp8: bool
    """Whether it multiplies FP8 as 16-bit operands: at their rate, into sums that need no promotion."""
    peak_share: float
    """Part of the device's rate on tensor cores that its instructions can reach: 1 of those that it was built for."""
    prefetches_b: bool
    """Whether its entry takes `Argument.PREFETCH_B`."""
    orders_tiles: bool
    """Whether its entry takes `Argument.TILE_ORDER`: a kernel each of whose tiles is summed alone."""
    max_m: int
    """Rows of A, of a batch those of one product, up to which its kernels are timed and chosen; 0 where for any. Of
    more they are right, and slow."""
    own_clusters: tuple[tuple[int, int], ...]
    """Clusters that its kernels may have beside those of the target, of both sides above 1: docs/safety.md."""
    types: tuple[Types, ...]
    """The element types and scale factors that it can build."""
    epilogues: tuple[Epilogue, ...]
    """The epilogues that it can build."""
    groupings: tuple[Grouping, ...]
    """How many products its kernels can compute in a launch."""
    layouts: tuple[Layout, ...]
    """The layouts of A and B that it can build."""

    def workspace(self, candidate: Candidate) -> Workspace:
        """Say what the kernel needs beside its operands."""

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Return (m_multiple, n_multiple) that a problem must have; (1, 1) for a kernel that takes all."""

    def alignment(self, candidate: Candidate) -> Alignment:
        """Say of which bytes the kernel asks operands' addresses and leading strides to be multiples."""

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which an element's products are added up; empty where it depends on m, n or arrival.

        An element of D depends on a row of A, a column of B and that order: which products an instruction adds to a
        running sum at once, in which order these follow along k, and how the sums of parts of k are brought together.
        It does not depend on the tile that the element lies in, on exchanged operands, stages or clusters that share
        loads alone. So all kernels of one operation that have one name give the same bits, whatever m is and whatever
        the other rows hold.
        """


class RowsFamily(Family, Protocol):
    """A family of operations on rows."""

    operations: tuple[RowOperation, ...]
    """Those that it computes."""

    def limits(self, candidate: Candidate, operation: RowOperation) -> RowLimits:
        """Say what the kernel asks of a problem."""

    def num_reads(self, candidate: Candidate, operation: RowOperation) -> int:
        """Count how often the kernel reads X."""


class Defaults:
    """What a family is where it says nothing else: dense products with no further step, aligned rows, any chip."""

    kind = GEMM
    knobs: type[Knobs] = GemmKnobs
    needs: tuple[Feature, ...] = ()
    num_strides = 1
    is_fallback = False
    loads_outside = False
    widens_fp8 = False
    peak_share = 1.0
    prefetches_b = False
    orders_tiles = False
    max_m = 0
    own_clusters: tuple[tuple[int, int], ...] = ()
    epilogues: tuple[Epilogue, ...] = (Epilogue.NONE,)
    groupings: tuple[Grouping, ...] = (Grouping.DENSE,)
    layouts: tuple[Layout, ...] = tuple(Layout)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Refuse nothing."""
        del candidate, operation, target
        return None

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all sizes."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Ask for addresses and strides that are multiples of 16 bytes."""
        del candidate
        return Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Promise no order."""
        del candidate
        return ""


def signature(key: KernelKey) -> Signature:
    """Return the arguments of a kernel's entry, in order."""
    family = family_of(key.candidate)
    has_workspace = family.workspace(key.candidate).is_needed
    return signature_of(
        key.operation,
        has_workspace=has_workspace,
        prefetches_b=family.prefetches_b,
        orders_tiles=family.orders_tiles,
    )


def _members(protocol: Any) -> tuple[str, ...]:
    """List what a family has that satisfies a protocol."""
    bases = [x for x in protocol.__mro__ if Protocol in x.__mro__[1:]]
    names = (y for x in reversed(bases) for y in (*x.__annotations__, *(z for z in vars(x) if not z.startswith("_"))))
    return tuple(dict.fromkeys(names))


PROTOCOLS = {GEMM: GemmFamily, ROWS: RowsFamily}
"""What families satisfy, by their kind."""
_COMMON, _MEMBERS = _members(Family), {kind: _members(protocol) for kind, protocol in PROTOCOLS.items()}


@cache
def family_named(name: str) -> Family:
    """Return the family of a name, loaded by its entry point.

    Raises:
        CandidateError: there is none of that name.
        FamilyError: it cannot be loaded, or two have one name.
    """
    found = registrations()
    if name not in found:
        raise CandidateError(f"no kernel family {name!r}; there are: {', '.join(sorted(found))}")
    family: Family = found[name].load(_COMMON, _MEMBERS)
    if family.knobs is not KINDS[family.kind].knobs:
        text = "has knobs of its own and no `tiling`" if not hasattr(family, "tiling") else ""
        text = "orders tiles, which takes GemmKnobs" if getattr(family, "orders_tiles", False) else text
        if text:
            raise FamilyError(f"the family {name!r} of {found[name].source} {text}")
    return family


def families() -> dict[str, Family]:
    """Return all families by name.

    Raises:
        FamilyError: one cannot be loaded, or two have one name.
    """
    return {name: family_named(name) for name in registrations()}


def any_family_of(candidate: Candidate) -> Family:
    """Return a candidate's family; errors as `family_named`."""
    return family_named(candidate.family)


def _of_kind(candidate: Candidate, kind: str) -> Any:
    """Return a candidate's family.

    Raises:
        CandidateError: there is none of that name, or it is of another kind.
    """
    family = family_named(candidate.family)
    if family.kind != kind:
        raise CandidateError(f"{family.name} is a family of the kind {family.kind}; expected one of the kind {kind}")
    return family


def family_of(candidate: Candidate) -> GemmFamily:
    """Return the family of a candidate for products; errors as `_of_kind`."""
    found: GemmFamily = _of_kind(candidate, GEMM)
    return found


def is_for_rows(candidate: Candidate, m: int) -> bool:
    """Say whether a kernel of products may be chosen for a problem of `m` rows of A: `GemmFamily.max_m`."""
    most = family_of(candidate).max_m
    return not most or m <= most


def rows_family_of(candidate: Candidate) -> RowsFamily:
    """Return the family of a candidate for operations on rows; errors as `_of_kind`."""
    found: RowsFamily = _of_kind(candidate, ROWS)
    return found


def tiling_of(candidate: Candidate) -> GemmKnobs:
    """Say how a kernel divides its problem into tiles, for what predicts times and counts CTAs.

    Of `GemmKnobs` it is these. A family with knobs of its own describes its kernels by them: `tiling(candidate)`.
    """
    if isinstance(candidate.knobs, GemmKnobs):
        return candidate.knobs
    found: GemmKnobs = cast("Any", family_of(candidate)).tiling(candidate)
    return found


def row_tiling_of(candidate: Candidate) -> RowKnobs:
    """Say how a kernel divides rows among threads, as `tiling_of`."""
    if isinstance(candidate.knobs, RowKnobs):
        return candidate.knobs
    found: RowKnobs = cast("Any", rows_family_of(candidate)).tiling(candidate)
    return found


def compilers_of(candidate: Candidate) -> tuple[str, ...]:
    """Return the distributions that make a candidate's kernel in CuTe DSL's place, as `Binary` says; else none."""
    return tuple(getattr(any_family_of(candidate), "compilers", ()))


def check_knobs(candidate: Candidate) -> None:
    """Refuse a candidate from a file whose knobs are not its family's.

    Raises:
        CandidateError: it has others, or one is out of its range; or there is no such family.
    """
    family = any_family_of(candidate)
    usual = KINDS[family.kind].knobs
    if isinstance(candidate.knobs, usual) != (family.knobs is usual):
        names = ", ".join(x.name for x in fields(cast("Any", family.knobs)))
        raise CandidateError(f"{candidate.name} has knobs of another family; those of {candidate.family} are {names}")
    family.knobs.of(candidate)


def all_families_for(target: Target, kind: str) -> list[Family]:
    """List the families of a kind whose needs a target's chip has, by name."""
    found = [family for _, family in sorted(families().items())]
    return [x for x in found if x.kind == kind and not target.lacks(x.needs)]


def families_for(target: Target) -> list[GemmFamily]:
    """List the families of products whose needs a target's chip has, by name."""
    return cast("list[GemmFamily]", all_families_for(target, GEMM))


def families_of(operation: Operation, target: Target) -> list[GemmFamily]:
    """List the families for a target that compute products grouped as an operation's are, by name."""
    return [family for family in families_for(target) if operation.grouping in family.groupings]


def rows_families_of(operation: RowOperation, target: Target) -> list[RowsFamily]:
    """List the families for a target that compute an operation on rows, by name."""
    found = cast("list[RowsFamily]", all_families_for(target, ROWS))
    return [family for family in found if operation in family.operations]
