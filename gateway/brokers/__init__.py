"""Adapters: each implements `gateway.ports.Broker` for one kind of namespace."""
