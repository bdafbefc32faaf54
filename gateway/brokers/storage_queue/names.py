"""
Names of queues in Azure Storage: 3 to 63 lower-case letters, digits and single hyphens.

  orders                           orders
  orders/$DeadLetterQueue          orders-poison
  east/x-servicebus-transfer/0     pg-eastzsx-servicebus-transferzs0
  orders/x-pairgate-shard/2        pg-orderszn2

A name that is valid there stays unchanged, unless it begins with `pg-`. Any other name is encoded
after `pg-`, with two letters for each invalid character: zs for a slash, zd for a dot, zu for an
underscore, zt for a tilde, zm for a dollar sign, zh for a hyphen where none is allowed, zz for the
letter z. zn and a number name the shard.
"""

import re
from collections.abc import Iterator
from typing import Final

from gateway.domain.entity import SHARD_MARK, EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire.storage_queue.fields import MAX_NAME, is_name

POISON: Final = "-poison"
# Characters of a name, so that its dead-letter queue has a valid name, too.
MAX_OWN: Final = MAX_NAME - len(POISON)
_MARK: Final = "pg-"
_CODES: Final = {"/": "zs", ".": "zd", "_": "zu", "~": "zt", "$": "zm", "z": "zz"}
_HYPHEN: Final = "zh"
_LETTERS: Final = {code: char for char, code in _CODES.items()} | {_HYPHEN: "-"}
_CODED: Final = re.compile(r"(?P<name>(?:[a-y0-9-]|z[a-mo-z])+)(?:zn(?P<shard>[1-9][0-9]{0,3}))?")
_PIECE: Final = re.compile(r"z.|[^z]")
_PLAIN: Final = re.compile(r"[a-z0-9-]*", re.ASCII)
_ALPHABET: Final = re.compile(r"[a-z0-9._~$/-]*", re.ASCII)


def queue_name(entity: EntityPath) -> str:
    """
    The name of the queue that has the entity's messages.

    Raises:
        InvalidRequest: the name isn't possible in Azure Storage; the text says the limit.
    """
    if entity.is_transfer_dead_letter or entity.is_subscription:
        raise InvalidRequest(
            f"{entity}: Azure Storage has no topics: the name of a queue or of its dead letters"
            " expected"
        )
    shard, whole = entity.shard_number, entity.whole
    own, end = whole.parent.key, POISON if entity.is_dead_letter else ""
    if own.endswith(POISON):
        if end:
            raise InvalidRequest(
                f"{entity}: a dead-letter queue has no dead-letter queue of its own"
            )
        own, end = own.removesuffix(POISON), POISON
    if not own or not _ALPHABET.fullmatch(own):
        raise InvalidRequest(f"{entity}: letters, digits, '.', '-', '_', '~', '$' and '/' expected")
    name = own
    if shard or not is_name(own) or own.startswith(_MARK):
        name = f"{_MARK}{_coded(own)}" + (f"zn{shard}" if shard else "")
    if len(name) > MAX_OWN:
        raise InvalidRequest(
            f"{entity}: {MAX_OWN} characters at most expected of a queue's name in Azure Storage,"
            f" got {len(name)} of {name}"
        )
    return f"{name}{end}"


def entity_of(queue: str) -> EntityPath | None:
    """
    The entity whose messages are in that queue.

    None if it is a dead-letter queue, or not named by Pairgate's rules.
    """
    if queue.endswith(POISON) or not is_name(queue):
        return None
    key, shard = queue, 0
    if queue.startswith(_MARK):
        match = _CODED.fullmatch(queue.removeprefix(_MARK))
        if match is None:
            return None
        shard = int(match["shard"] or 0)
        key = "".join(_LETTERS.get(piece, piece) for piece in _PIECE.findall(match["name"]))
    entity = EntityPath(key).shard(shard)
    try:
        return entity if queue_name(entity) == queue else None
    except InvalidRequest:
        return None


def beginnings(prefix: str) -> list[str]:
    """
    The possible prefixes of queue names for entities with this prefix; each such queue has one of
    them.
    """
    key = prefix.lower()
    if not key or not _ALPHABET.fullmatch(key):
        return [""] if not key else []
    found = [key] if _PLAIN.fullmatch(key) else []
    # The encoding of a trailing hyphen depends on the next character.
    coded = (_coded(own.rstrip("-")) for own in (key, *_wholes(key)))
    return [*found, *(f"{_MARK}{each}" for each in coded)]


def _wholes(key: str) -> Iterator[str]:
    """The queues whose shards may have paths with this beginning."""
    for place, char in enumerate(key):
        rest = key[place:]
        if char == "/" and (SHARD_MARK.startswith(rest) or rest.startswith(SHARD_MARK)):
            yield key[:place]


def _coded(key: str) -> str:
    parts: list[str] = []
    before = "-"  # the hyphen of the mark
    for place, char in enumerate(key):
        may_stand = before != "-" and place < len(key) - 1
        before = char if char != "-" or may_stand else _HYPHEN
        parts.append(_CODES.get(before, before))
    return "".join(parts)
