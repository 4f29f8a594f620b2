"""Ctrl-C, SIGTERM and SIGHUP end a command within two seconds, whatever it is doing, and leave nothing behind.

A signal raises KeyboardInterrupt in the main thread, which unwinds in good order. Where that takes too long, because
native code runs or a library swallows the exception, a thread ends the process: it kills the children, removes the
scratch folders and exits. A second signal makes it do so at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aot.core.process import Terminated, kill_children
from aot.core.scratch import remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

END_S = 1.5
"""Seconds that the main thread has to end in good order."""

INTERRUPTED = "aot: interrupted; what was done is kept, and the same command carries on\n"

BEGINS_AGAIN = "aot: interrupted; nothing was written, and the same command begins again\n"
"""Of a command that writes its result at its end, whole."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_seen: list[int] = []
"""The signals that came, in order."""

_begins_again: list[bool] = []
"""Has an entry where the command that runs keeps nothing of what it did."""


def begin_again() -> None:
    """Have an interruption of the command that runs be told as that of one that keeps nothing of what it did."""
    _begins_again.append(True)


def interrupted_text() -> str:
    """Return what is said of the command that runs, or ran last, where it is interrupted."""
    return BEGINS_AGAIN if _begins_again else INTERRUPTED


def forget_command() -> None:
    """Take the next command for one that keeps what it did, unless it says otherwise."""
    _begins_again.clear()


def exit_code() -> int:
    """Return the exit code of an interrupted command, as shells report it: 128 and the signal's number."""
    return 128 + (_seen[0] if _seen else signal.SIGINT)


def was_interrupted() -> bool:
    """Say whether a signal has come that ends the command."""
    return bool(_seen)


def say_interrupted() -> None:
    """Say on standard error, if it is still there, that the command was interrupted."""
    with suppress(OSError):
        os.write(2, interrupted_text().encode())


def _raise(number: int, _frame: FrameType | None) -> None:
    """Interrupt the main thread, once: what comes later must not disturb its way out."""
    first = not _seen
    _seen.append(number)
    if first:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _watch(reader: int) -> None:
    """Wait for a signal, then for a second one or the end of the main thread's time, and end the process."""
    number = 0
    while number not in _SIGNALS:
        number = os.read(reader, 1)[0]
    select.select([reader], [], [], END_S)
    if not _seen:  # native code kept the main thread from noticing
        _seen.append(number)
    kill_children()
    remove_all()
    say_interrupted()
    os._exit(exit_code())


def _say_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Say nothing of an interruption that a destructor swallowed: the thread ends the process. Say all else as ever."""
    if not (_seen and isinstance(unraisable.exc_value, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)


@contextmanager
def watch() -> Iterator[None]:
    """End this process in time when it is told to; for the main thread of a command, from its first import on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True, name="aot-interrupt").start()
    sys.unraisablehook = _say_unraisable
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP, and a background job SIGINT
                signal.signal(number, _raise)
        yield
    except KeyboardInterrupt:
        say_interrupted()
        sys.exit(exit_code())
    finally:
        for number in _SIGNALS:  # the command has ended: nothing is left to interrupt
            signal.signal(number, signal.SIG_IGN)
