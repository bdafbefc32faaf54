"""The durable broker on SQLite."""
