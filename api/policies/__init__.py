"""Booking rules as documents, and their windows."""
