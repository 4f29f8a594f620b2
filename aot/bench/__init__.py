"""A bench of a finished wheel on a device, whose results are a receipt that is checked, and repeated elsewhere."""
