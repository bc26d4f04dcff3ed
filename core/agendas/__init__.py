"""Agendas: jobs of one lease in their order, whether all end in time, and what is said of it."""
