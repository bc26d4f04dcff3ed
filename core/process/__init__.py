"""Conditions of the whole platform that every process keeps: its time, read-only, claims."""
