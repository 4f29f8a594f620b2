"""The few kernels that are worth shipping."""
