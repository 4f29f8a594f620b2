"""Examples: whole programs in C and C++ beside this file, and layers in Python that are modules."""
