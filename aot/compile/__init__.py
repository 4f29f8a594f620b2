"""Candidates become objects in the artifact store."""
