"""Engines that spread a model over ranks, and the techniques they combine, one per file."""
