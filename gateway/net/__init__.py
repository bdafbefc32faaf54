"""Trio shells around the codecs: the only part that touches sockets."""
