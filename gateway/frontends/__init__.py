"""The protocols that clients speak: one module each, over any `gateway.ports.Broker`."""
