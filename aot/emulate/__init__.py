"""Execute compiled kernels without a GPU: an interpreter of their PTX, launched by the library's own host code."""
