"""Files with secrets, as Pairgate accepts them."""

from pathlib import Path


def write_secret(path: Path, secret: str | bytes) -> None:
    """Write the file; a new one only its owner can read, from its beginning on."""
    path.touch(mode=0o600)
    path.write_bytes(secret.encode() if isinstance(secret, str) else secret)
