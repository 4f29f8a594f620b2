"""Benchmarks: the installed wheel against torch on a GPU, and against compiling with the DSL on a build host."""
