"""
AMQP 1.0 without I/O: types, messages, error conditions, and the engine for links and transfers.

The sockets are in `net.amqp`.
"""
