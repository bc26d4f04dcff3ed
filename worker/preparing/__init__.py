"""Steps before the first rank starts: files, environments, packages, and the cache of both."""
