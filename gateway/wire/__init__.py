"""Codecs: bytes to values and back, both directions in one file. No I/O."""
