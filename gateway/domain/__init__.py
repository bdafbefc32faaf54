"""Values and rules. Imports nothing of gateway; no Trio, no sockets, no clock, no logging."""
