"""What a release is made of beside its wheels, and whether another build gives the same bytes."""
