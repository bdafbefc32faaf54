"""Checks bodies into and out of the store: the only part that knows both messages and the store."""

import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.claim import Claim, ClaimCorrupt, ClaimMissing, Keeping
from gateway.extensions.claims.compression import compressed, decompressed, in_thread
from gateway.extensions.claims.encryption import KEY, TAG, decrypted, encrypted
from gateway.extensions.claims.events import ClaimLeftBehind
from gateway.extensions.claims.options import ClaimOptions, Compression
from gateway.extensions.claims.store import ClaimStore
from gateway.ports import NewId, Observer, WallClock

T = TypeVar("T")
LAST_STEP: Final = 3.0  # seconds for the steps that follow a send or a settlement


@attrs.frozen(kw_only=True)
class MessageCodec:
    """Encodes a message, including its body, and decodes it. Both raise `MessageError`."""

    encode: Callable[[Message], bytes]
    decode: Callable[[bytes], Message]


@attrs.define(eq=False, kw_only=True)
class ClaimCheck:
    """
    Moves bodies between messages and the store. A step with the store that takes longer than
    `options.timeout` is `Unavailable`.
    """

    store: ClaimStore
    options: ClaimOptions
    codec: MessageCodec
    clock: WallClock
    new_id: NewId
    observer: Observer
    rng: random.Random  # makes keys, too, so that it must be cryptographically secure
    # True: a time to live may start again on the way, so that a message's expiry isn't known.
    lives_anew: bool = False

    @property
    def keeping(self) -> Keeping:
        options = self.options
        return Keeping(
            after_completion=timedelta(seconds=options.keep),
            after_expiry=_span(options.keep_expired),
            at_most=_span(options.keep_at_most),
            done=timedelta(seconds=options.keep_done),
        )

    def large_body(self, message: Message) -> bytes | None:
        """
        The encoded body if it belongs into the store, else None.

        Raises:
            InvalidRequest: the message has a property of a reference, or can't be encoded.
            MessageTooLarge: the body is larger than `max_body`.
        """
        claims.refuse_reserved(message.properties)
        options, body = self.options, message.body
        if isinstance(body, bytes) and len(body) <= options.above:
            return None
        try:
            # The message's encoded form has the bytes of the body if the body isn't bytes.
            encoded = self.codec.encode(Message(body=body, encoded=message.encoded))
        except MessageError as error:
            raise InvalidRequest(str(error)) from error
        if len(encoded) <= options.above:
            return None
        if len(encoded) > options.max_body:
            limit = options.max_body
            raise MessageTooLarge(
                f"the body has {len(encoded)} bytes, more than claims.max_body ({limit})"
            )
        return encoded

    async def check_in(self, entity: EntityPath, message: Message, body: bytes) -> Claim:
        """
        Return the claim once the body of the message is in the store, durably.

        After a cancellation the body may be in the store under a claim that no message will ever
        carry.

        Raises:
            BrokerError: the store didn't accept the body.
        """
        lasting = attrs.evolve(message, time_to_live=None) if self.lives_anew else message
        name = claims.new_id(self.new_id(), lasting, self.clock())
        key = self.rng.randbytes(KEY) if self.options.encrypt else None
        stored, codec, digest = await in_thread(len(body), lambda: self._packed(body, key, name))
        claim = Claim(
            id=name,
            store=self.options.name,
            entity=entity.name,
            codec=codec,
            size=len(body),
            stored=len(stored),
            sha256=digest,
            key=key,
        )
        try:
            await self._timely(lambda: self.store.put(claim.id, stored))
        except BaseException:
            with trio.move_on_after(LAST_STEP, shield=True):
                await self.forget([claim])
            raise
        return claim

    async def check_out(self, claim: Claim, message: Message) -> Message:
        """
        Return the message as it was sent, with its body.

        Raises:
            ClaimMissing: the store has lost the body, or the body is in another store.
            ClaimCorrupt: the body isn't the one that was stored.
            BrokerError: the store can't be read.
        """
        if claim.store != self.options.name:
            raise ClaimMissing(f"the body is in another store, {claim.store!r}")
        if max(claim.size, claim.stored - TAG) > self.options.max_body:
            raise ClaimCorrupt(
                f"{claim.size} bytes are more than claims.max_body ({self.options.max_body})"
            )
        data = await self._timely(lambda: self.store.get(claim.id, claim.stored))
        try:
            found = await in_thread(claim.size, lambda: self._unpacked(claim, data))
        except MessageError as error:
            raise ClaimCorrupt(str(error)) from error
        return attrs.evolve(
            message,
            body=found.body,
            properties=claims.without_reference(message.properties),
            encoded=(*message.encoded, *found.encoded),
        )

    async def is_done(self, claim: Claim) -> bool:
        """
        True if a copy of that message was completed.

        Raises:
            BrokerError: the store can't be read.
        """
        try:
            await self._timely(lambda: self.store.get(claim.done, 0))
        except (ClaimMissing, ClaimCorrupt):
            return False
        return True

    async def complete(self, claim: Claim) -> None:
        """
        Return once the store knows that the message was completed, or couldn't be reached in time.
        In the second case the body stays until it is deleted by age. A cancellation waits as long.
        """
        reason = "the store didn't answer in time"
        with trio.move_on_after(LAST_STEP, shield=True):
            try:
                await self.store.put(claim.done, b"")
                reason = ""
            except BrokerError as error:
                reason = str(error)
        if reason:
            self.observer.report(ClaimLeftBehind(claim=claim.id, reason=reason))

    async def forget(self, kept: Sequence[Claim]) -> None:
        """
        Return when bodies of messages that were never sent are deleted; failures are reported, and
        those bodies are deleted by age.
        """
        left = {claim.id: "the store didn't answer in time" for claim in kept}
        try:
            for name in list(left):
                try:
                    await self.store.remove(name)
                except BrokerError as error:
                    left[name] = str(error)
                else:
                    del left[name]
        finally:
            for name, reason in left.items():
                self.observer.report(ClaimLeftBehind(claim=name, reason=reason))

    def _packed(self, body: bytes, key: bytes | None, name: str) -> tuple[bytes, str, str]:
        """The bytes to store, their codec and their digest."""
        stored, codec = body, Compression.NONE
        if self.options.compression is Compression.ZSTD:
            smaller = compressed(body)
            if len(smaller) < len(body):
                stored, codec = smaller, Compression.ZSTD
        if key is not None:
            stored = encrypted(stored, key, name)
        return stored, codec.value, hashlib.sha256(stored).hexdigest()

    def _unpacked(self, claim: Claim, data: bytes) -> Message:
        claim.check(data)
        if claim.key is not None:
            data = decrypted(data, claim.key, claim.id)
        if claim.codec == Compression.ZSTD.value:
            data = decompressed(data, claim.size)
        elif len(data) != claim.size:
            raise ClaimCorrupt(f"{len(data)} bytes found, {claim.size} expected")
        return self.codec.decode(data)

    async def _timely(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            with trio.fail_after(self.options.timeout):
                return await work()
        except trio.TooSlowError as error:
            seconds = self.options.timeout
            raise Unavailable(f"claim store: no answer within {seconds:g} s") from error


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
