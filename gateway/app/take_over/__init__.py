"""
A restart that refuses no connection: listening sockets that another process hands to this one.

Read `docs/how-to/run/restart-and-upgrade.md` first.
"""
