"""Booking rules as documents, their windows, and the rest of quotas."""
