"""
Gateways that know each other: each settles deliveries that another one holds, on behalf of its own
clients.

`members` knows the addresses, `channel` is an encrypted connection, `peers` sends the requests,
`server` answers them. `processes` has the processes of a gateway with workers, which do the same
for each other.
"""
