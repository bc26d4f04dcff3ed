"""From a dataset to the batches of a rank, in an order that no layout changes."""
