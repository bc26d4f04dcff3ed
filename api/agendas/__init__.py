"""Agendas: an ordered list of jobs for one lease."""
