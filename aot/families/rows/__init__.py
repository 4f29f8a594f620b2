"""Families of operations on rows, a module each; those with a leading underscore hold what they share."""
