"""Makes the repository importable for every test below, however pytest is started; what takes longest comes first."""

LONGEST = ("equivalence", "package/test_wheels", "simulated", "interrupts", "package", "unit/compile", "runtime")
"""Below tests/: what a worker must not begin when the others are done."""


def _rank(item):
    path = item.nodeid.partition("::")[0].removeprefix("tests/")
    return next((i for i, start in enumerate(LONGEST) if path.startswith(start)), len(LONGEST))


def pytest_collection_modifyitems(items):
    items.sort(key=_rank)
