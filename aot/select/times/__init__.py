"""Times of kernels on problems: measured, levelled between runs, and learned for what was not measured."""
