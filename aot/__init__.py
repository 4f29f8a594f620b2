"""Ahead-of-time kernel packaging: tune CuTe DSL GEMM kernels offline, ship the winners compiled in a wheel."""
