"""The tests that Service Bus's own client ships, unmodified, against a gateway: `make interop`."""
