"""When a kernel lets the next one start, derived from the rule's description: research/log/2026-11-24-next-start.md."""

from __future__ import annotations

AT_ONCE, AFTER_LOADS, UNLESS_EARLY = 0, 1, 2


def when(ctas, held, num_bytes, bytes_per_us, *, is_constant, is_large_cluster, knows_loads=True):
    """Give when the next kernel may start, on Hopper.

    Args:
        ctas: of the launch, or of all its tiles.
        held: CTAs that the device holds at once.
        num_bytes: of A and B.
        bytes_per_us: of the device's memory.
        is_constant: whether B is.
        is_large_cluster: whether a cluster has four CTAs or more.
        knows_loads: whether the kernel tells when it has issued its loads of B.
    """
    later = AFTER_LOADS if knows_loads else AT_ONCE
    share = ctas * 100 // held
    last = share if share < 100 else share % 100
    if last > 50:
        last_bytes = num_bytes * last // max(share, 1)
        loss, gain = last_bytes * (88 - last) // bytes_per_us, 250 if is_constant else 100
        if loss > gain:
            return UNLESS_EARLY if share < 100 else later
    return later if share <= 50 or is_large_cluster else AT_ONCE
