"""How a gradient changes the weights."""
