"""The candidates of every family, which of them are legal, and what the cost model says of them."""
