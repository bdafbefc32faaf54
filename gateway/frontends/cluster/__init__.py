"""
Gateways that know each other: each settles deliveries that another one holds, on behalf of its own
clients.

`members` knows the addresses, `channel` is an encrypted connection, `peers` asks, `server` answers.
`processes` are those of a gateway with workers, which do the same for each other.
"""
