"""Everything that travels to the device: it verifies and times kernels."""
