"""From measured times to the kernels that are shipped and their dispatch table."""
