"""Reads the TOML file into the options classes of the parts; no part sees the whole file."""
