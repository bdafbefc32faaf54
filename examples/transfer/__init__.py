"""A change in two stores, made safe by a queue. See README.md."""
