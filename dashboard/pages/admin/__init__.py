"""The pages of staff and administrators."""
