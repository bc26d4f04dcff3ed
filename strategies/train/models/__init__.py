"""Networks, one file each, built from a ModelSpec, with names that do not depend on the layout.

B samples, T tokens, C features (width), H heads, K key-value heads, D features per head, V tokens
in the vocabulary.
"""
