"""What spreads a model over ranks: engines, and one technique a file."""
