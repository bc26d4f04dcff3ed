"""Layers around every request: places, caps, headers, numbers."""
