"""Speak HTTP: addresses and tokens, requests, pages, streams, downloads."""
