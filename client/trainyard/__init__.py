"""Trainyard's SDK and command line: talks HTTP, knows nothing of the server."""
