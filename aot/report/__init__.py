"""The HTML report about a tuning."""
