"""Bookings: requests for blocks, verdicts, leases, waitlist, maintenance, calendars."""
