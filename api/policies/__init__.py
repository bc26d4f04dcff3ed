"""Booking rules as documents, their windows, and what quotas leave."""
