"""Models of the field: how their configurations become weights."""
