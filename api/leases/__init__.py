"""Bookings: wishes, verdicts, leases, waitlist, maintenance, calendars."""
