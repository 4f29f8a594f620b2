"""Makes the repository importable for every test below, however pytest is started; what takes longest comes first."""

import gc
import os
import signal
from functools import cache
from pathlib import Path

from aot.compile.quack_alone import import_quack_alone
from aot.core.garbage import collect_seldom
from tests import turns

# There is a worker for each core: threads of torch and of numpy beside it wait for one another by spinning, which takes
# several times what the work takes. Here and in what tests start, and before either is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What zig builds of a target's C library takes six seconds: one cache serves tests that work in folders of their own.
os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "toolchain" / "zig"))

FIRST = ("unit/fleet/test_engine",)
"""Below tests/: what a worker begins with. dask.distributed gives a thread ten seconds to start its loop. They were not
enough, twice, in a process that had run thousands of tests; why is not known. In one that begins with it they are."""

LONGEST = (
    "equivalence",
    "package/test_wheels",
    "interrupts",
    "simulated",
    "unit/compile",
    "unit/kinds/rows/test_outside_operation",
    "runtime/test_dispatch",
    "runtime/test_grouped_kernels",
    "package",
    "unit/cli/test_cli_select",
    "runtime",
    "unit/emulate",
    "unit/families",
    "unit/research",
    "unit/cli",
    "unit/measure",
    "unit/test_hostile_texts",
)
"""Below tests/: what a worker must not begin when the others are done, longest first. Source: CPU seconds of files in a
clean clone, 2026-11-23; of equivalence and interrupts, 2026-11-22; of unit, 2026-11-28."""


def pytest_configure():
    """Collect garbage and import quack as `aot` does. Let signals interrupt what tests start.

    A background job, or one of `nohup`, ignores some signals and hands that on.
    """
    collect_seldom()
    import_quack_alone()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@cache
def _rank(path):
    path = path.removeprefix("tests/")
    order = (*FIRST, *LONGEST)
    return next((i for i, start in enumerate(order) if path.startswith(start)), len(order))


def pytest_collection_modifyitems(config, items):
    """Leave to `make walk` what is marked so, and put what takes longest first."""
    if "AOT_EVERY_CANDIDATE" not in os.environ:
        left = [x for x in items if x.get_closest_marker("walk")]
        config.hook.pytest_deselected(items=left)
        items[:] = [x for x in items if not x.get_closest_marker("walk")]
    items.sort(key=lambda x: _rank(x.nodeid.partition("::")[0]))


def pytest_report_header():
    """Say whose turn it is."""
    text = f"turn {turns.turn()} of {turns.NUM_TURNS} of the long tests; make test TURN=all runs them all"
    return text if turns.turn() is not None else None


def pytest_ignore_collect(collection_path, config):
    """Leave out long files whose turn it is not, and what is slow as a whole where nothing slow is asked for.

    Importing CUTLASS alone takes seconds.
    """
    if turns.waits(collection_path):
        return True
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() or None
    return None


def pytest_collection_finish():
    """Leave what was imported and collected out of every search for garbage: it stays."""
    gc.collect()
    gc.freeze()
