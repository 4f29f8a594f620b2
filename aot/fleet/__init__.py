"""A fleet: other machines, or all devices of this one, that compile and measure for a command, by Dask distributed."""
