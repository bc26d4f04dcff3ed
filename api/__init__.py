"""The HTTP face: REST, live streams, the node protocol."""
