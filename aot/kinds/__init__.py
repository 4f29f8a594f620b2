"""The kinds of work that kernels do, a package each: all that the road must know of one sort of problem."""
