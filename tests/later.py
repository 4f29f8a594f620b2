"""Modules that are imported when something of them is asked for: each worker collects every test, and runs some."""

from importlib import import_module


class Later:
    """What stands for a module by its name."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("_") and name != "__file__":  # pytest asks all that a module holds for marks of its own
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
