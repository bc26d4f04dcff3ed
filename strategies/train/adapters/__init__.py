"""Adapters: small trained matrices beside frozen ones, which may be stored in few bits."""
