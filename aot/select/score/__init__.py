"""What a selection is worth: how it answers, what it loses on held-out problems, and why."""
