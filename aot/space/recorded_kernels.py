"""What families of every kind of work say of a kernel that a file has measurements of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.errors import CandidateError
from aot.families import check_knobs, family_of
from aot.kinds.rows.candidate import RowCandidate
from aot.row_families import row_family_of

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.target import Target


def check_recorded(candidate: Candidate | RowCandidate, target: Target) -> None:
    """Refuse a candidate that cannot have been measured on a target.

    Raises:
        CandidateError: there is no such family, the candidate has knobs of another, or the target is none of the
            family's.
    """
    if isinstance(candidate, RowCandidate):
        archs = row_family_of(candidate).archs
        if target.arch not in archs:
            wanted = " or ".join(archs)
            raise CandidateError(
                f"has kernels of {candidate.family}, which is for {wanted}; {target.name} is {target.arch}"
            )
        return
    check_knobs(candidate)
    lacked = target.lacks(family_of(candidate).needs)
    if lacked:
        raise CandidateError(f"has kernels of {candidate.family}, which needs {lacked[0]}; {target.name} has it not")
