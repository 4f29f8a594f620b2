"""Strategies that decide which candidate is measured next."""
