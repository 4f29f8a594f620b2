"""Where the data of the asynchronous units lie: pure functions of descriptors and shapes, on numpy arrays.

Nothing here knows the machine that executes a kernel. Each module's docstring says which of its layouts are tested
against an independent source, and which are not.
"""
