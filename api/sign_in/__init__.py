"""Ways in: passwords, links, tokens, invitations, an OpenID provider."""
