"""The command line. Exit codes are in `trainyard.cli.exit_codes`."""

from trainyard.cli.app import main

__all__ = ["main"]
