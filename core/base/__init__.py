"""What every other room uses: clock, errors, ids, settings, words."""
