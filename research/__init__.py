"""What no build needs: studies, benches and logs."""
