"""Values and rules. Imports no other part of gateway; no Trio, no sockets, no clock, no logging."""
