"""People and labs: accounts, exceptions, notices, use of the nodes, the rest of quotas."""
