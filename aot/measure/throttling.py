"""Notice that the device changes its speed: a reference kernel is timed on one problem between a tuning's problems.

A throttled GPU, a clock that was changed, a neighbour on the memory: each scales the times of a while, and a Jetson's
tools do not tell (its nvidia-smi answers N/A). The time of the reference kernel tells it on every device. Kernels are
compared within a problem: a change between problems is only reported, one during a problem has it measured again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.measure.protocol import TimingPlan

PAUSE_S = 1.0
"""Between two looks at a device that is to come back to its speed."""


class ThrottlingWatch:
    """Compares the reference kernel's times, in microseconds.

    Args:
        plan: tolerance, and how long to wait.
        read_us: times the reference kernel now; None when it cannot be timed, and then nothing is ever found to drift.
        usual_us: what it took at first, where that is known from an earlier process.
        warn: told what is found.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        plan: TimingPlan,
        read_us: Callable[[], float | None],
        usual_us: float | None,
        warn: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan, self._read_us, self._usual_us, self._warn, self._sleep = plan, read_us, usual_us, warn, sleep
        self._last_us: float | None = None

    def _differ(self, now_us: float | None, then_us: float | None) -> bool:
        if now_us is None or then_us is None:
            return False
        return max(now_us, then_us) > (1 + self._plan.reference_tolerance) * min(now_us, then_us)

    def start(self) -> None:
        """Take the first reading of this process, and tell when it is not what an earlier one found."""
        self._last_us = self._read_us()
        if self._usual_us is None:
            self._usual_us = self._last_us
        elif self._differ(self._last_us, self._usual_us):
            self.settle()

    def changed(self) -> str:
        """Time the reference kernel after a problem; say how it changed during the problem, or nothing."""
        before, now = self._last_us, self._read_us()
        self._last_us = now
        if not self._differ(now, before):
            return ""
        return f"the reference kernel takes {now:.2f} us, before it took {before:.2f} us"

    def settle(self) -> None:
        """Wait for the device to come back to its usual speed; where it does not, take the new speed for usual."""
        waited = 0.0
        while self._differ(self._last_us, self._usual_us) and waited < self._plan.settle_s:
            self._sleep(PAUSE_S)
            waited += PAUSE_S
            self._last_us = self._read_us()
        if self._differ(self._last_us, self._usual_us):
            self._warn(
                f"the device keeps another speed than before: the reference kernel takes {self._last_us:.2f} us, it "
                f"took {self._usual_us:.2f} us; look at power mode, clocks and temperature"
            )
            self._usual_us = self._last_us
