"""Way out of a program's sandbox: a proxy that reaches the hosts of its list, and no other."""
