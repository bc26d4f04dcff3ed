"""One file for each subject of the HTTP API: its requests and its answers."""
