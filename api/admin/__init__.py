"""What administrators do: clean up, look back."""
