"""People and labs: accounts, sign-in, notices, use of the nodes."""
