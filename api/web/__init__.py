"""Needs of every route: senders and their rights, errors, the process, base classes of shapes."""
