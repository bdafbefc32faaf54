"""The address of a simulated gateway, and the credentials of its clients."""

from typing import Final

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.storage_queue import StorageAccount

HOST: Final = "gateway.sim"
POLICY: Final = AccessPolicy(name="sim", keys=("a key for tests",), rights=frozenset(Right))
TOKENS_LIFE: Final = 3600.0  # seconds
ACCOUNT: Final = StorageAccount(name="simulated", keys=(b"a key for tests",))
