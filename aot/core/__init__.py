"""The nouns of the road and the readers of its files; it imports nothing else of ours."""
