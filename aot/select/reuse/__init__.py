"""Selections made of others: of parts, of another target, of siblings, of few problems."""
