"""The web pages, rendered from the public API's own answers."""
