"""The booking rules as data, and the one pure function that applies them."""
