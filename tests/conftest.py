"""Makes the repository importable for every test below, however pytest is started."""
