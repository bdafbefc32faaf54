"""Test tools that ship with the package; no other part imports them."""
