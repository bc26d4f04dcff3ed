"""Commands for accounts, tokens, sessions, notifications and usage."""
