"""
Terms of Storage Queue that the port, the engine and the front end share: accounts, poison messages,
and pop receipts.

    orders  --- dequeued `poisonthreshold` times, never deleted --->  orders-poison
"""

import base64
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import attrs
from attrs import validators

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import DeadLetter, Delivery

_NAME: Final = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


@attrs.frozen(kw_only=True)
class StorageAccount:
    """
    An account with up to two keys, so that one can be changed while clients use the other. Without
    a key, its clients need a token of an identity provider.
    """

    name: str = attrs.field()
    keys: tuple[bytes, ...] = attrs.field(default=(), repr=False, validator=validators.max_len(2))

    @name.validator
    def _is_name(self, _: object, name: str) -> None:
        check_account_name(name)


def check_account_name(name: str) -> None:
    """
    Return if an account may have that name.

    Raises:
        ValueError: the name is too short, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"3 to 24 lowercase letters and digits expected, found {name!r:.60}")


# The well-known account of Azurite, which developers have in their connection strings.
EMULATOR_ACCOUNT: Final = StorageAccount(
    name="devstoreaccount1",
    keys=(
        base64.b64decode(
            "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
        ),
    ),
)


POISON_SUFFIX: Final = "-poison"
POISON_REASON: Final = "PoisonThresholdExceeded"
# The properties of a Storage queue: no delivery limit and no dead letters. The size is the maximum;
# Azure allows 500 TiB per account.
UNLIMITED: Final = QueueProperties(max_delivery_count=2**31 - 1, max_size_in_megabytes=80 * 1024)


@attrs.frozen(kw_only=True)
class Terms:
    """A queue's invisibility timeout, and the dequeue count after which a message is poison."""

    hidden: timedelta
    poison_after: int | None = None


TermsOf = Callable[[str | None], Terms]
"""Reads the terms from a queue's user metadata. A plain function, which may run in any thread."""


def poison_queue(queue: EntityPath) -> EntityPath:
    return EntityPath(f"{queue.name}{POISON_SUFFIX}")


def too_many(queue: EntityPath, deliveries: int, threshold: int) -> DeadLetter:
    """The dead-letter reason of a message that is moved from that queue to its poison queue."""
    return DeadLetter(
        reason=POISON_REASON,
        description=f"{queue}: dequeued {deliveries} times and not removed; {threshold} expected.",
    )


@attrs.frozen
class PopReceipt:
    """
    A pop receipt, valid until the message is received or changed again.

    `deliveries` is the delivery count at that time, since a lock doesn't change the stamp. `holder`
    is the tag of the gateway that holds the message; 0: this one, or any. `token` is the
    namespace's own receipt, sealed, by which any gateway of a cluster finds the message; then the
    numbers mean nothing.
    """

    sequence: int
    stamp: int
    deliveries: int = 0
    holder: int = 0
    token: str = ""


@attrs.frozen(kw_only=True)
class TakenMessage:
    """
    A message as its receiver gets it.

    The message is visible to others from `delivery.locked_until` on; None: it is visible now.
    `receipt` is None if the namespace reports no pop receipt.
    """

    delivery: Delivery
    receipt: PopReceipt | None
