"""People, labs, how they sign in, what they are told, what they use."""
