"""Agendas: jobs of one lease in their order, a check that all end in time, and its wording."""
