"""Products of matrices, one, a batch of them or groups."""
