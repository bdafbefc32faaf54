"""What clients see: one module per protocol, each over any `gateway.ports.Broker`."""
