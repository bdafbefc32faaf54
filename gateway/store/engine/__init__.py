"""The broker that Pairgate is itself: queues, sessions, topics. Pure: no Trio, no clock, no I/O."""
