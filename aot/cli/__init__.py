"""The command line, the only place that exits."""
