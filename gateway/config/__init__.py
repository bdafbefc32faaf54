"""Reads the TOML file into the option classes of the parts; no part sees the whole of it."""
