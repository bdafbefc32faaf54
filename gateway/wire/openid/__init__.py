"""OpenID Connect, as an accepting service needs it: tokens, keys, and the discovery document."""
