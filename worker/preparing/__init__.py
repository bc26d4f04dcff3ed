"""Steps before the first rank starts: files, proofs, preflight."""
