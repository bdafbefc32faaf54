"""The time within which an expected event comes, however slow the machine: then it's missing."""

from typing import Final

# Seconds. A test that passes doesn't wait for it. A busy machine may take five times as long as a
# quiet one, and pytest's own limit, which breaks the next test too, must come later.
PATIENCE: Final = 240.0
