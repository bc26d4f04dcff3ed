"""Notices: what people are to be told, in which words, and how it leaves."""
