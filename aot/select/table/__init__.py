"""The sections of a dispatch table, built from times and a portfolio."""
