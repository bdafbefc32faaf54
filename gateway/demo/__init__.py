"""
A failover, shown with real processes: producers notice no outage.

Two brokers and a gateway are started, producers send over real sockets, the primary is killed and
restarted, the syphon moves the backlog to the primary, and an audit of every queue reports losses.
"""
