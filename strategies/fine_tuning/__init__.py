"""Beginning with the weights of others, training small matrices beside them, and leaving both in
the forms that others read."""
