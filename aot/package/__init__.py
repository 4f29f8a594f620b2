"""From a selection to a wheel."""
