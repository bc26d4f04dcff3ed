"""GPUs of this node: their slots, their health, and the processes that use them."""
