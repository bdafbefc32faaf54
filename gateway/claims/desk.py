"""Checks bodies in and out of the store: the one place that knows both messages and the store."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import attrs
import trio

from gateway.claims.compression import compressed, decompressed, in_thread
from gateway.claims.options import ClaimOptions, Compression
from gateway.claims.store import ClaimStore
from gateway.domain import claim as claims
from gateway.domain.claim import Claim, ClaimCorrupt, ClaimMissing, Keeping
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    Unavailable,
)
from gateway.domain.events import ClaimLeftBehind
from gateway.domain.message import Message
from gateway.ports import NewId, Observer, WallClock

T = TypeVar("T")
LAST_STEP: Final = 3.0  # seconds for what follows a send or a settlement


@attrs.frozen(kw_only=True)
class Codec:
    """A message as bytes and back, body and all. Both raise `MessageError`."""

    encode: Callable[[Message], bytes]
    decode: Callable[[bytes], Message]


@attrs.define(eq=False, kw_only=True)
class ClaimDesk:
    """
    Every step with the store has `options.timeout`; one that is longer is `Unavailable`.
    """

    store: ClaimStore
    options: ClaimOptions
    codec: Codec
    clock: WallClock
    new_id: NewId
    observer: Observer
    # A time to live may begin anew on the way: nobody knows when a message expires.
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
        The encoded body if it belongs into the store.

        Raises:
            InvalidRequest: the message has a property of a reference, or can't be encoded.
            MessageTooLarge: the body is above `max_body`.
        """
        claims.refuse_reserved(message.properties)
        options, body = self.options, message.body
        if isinstance(body, bytes) and len(body) <= options.above:
            return None
        try:
            # With what came along, which has the bytes of the body if they are of another form.
            encoded = self.codec.encode(Message(body=body, encoded=message.encoded))
        except MessageError as error:
            raise InvalidRequest(str(error)) from error
        if len(encoded) <= options.above:
            return None
        if len(encoded) > options.max_body:
            limit = options.max_body
            raise MessageTooLarge(f"body of {len(encoded)} bytes, of {limit} (claims.max_body)")
        return encoded

    async def check_in(self, entity: EntityPath, message: Message, body: bytes) -> Claim:
        """
        Return the claim once that body of the message is in the store, durably.

        Cancelled, it may be there under a claim that no message will ever carry.

        Raises:
            BrokerError: the store doesn't take it.
        """
        stored, codec, digest = await in_thread(len(body), lambda: self._packed(body))
        lasting = attrs.evolve(message, time_to_live=None) if self.lives_anew else message
        claim = Claim(
            id=claims.new_id(self.new_id(), lasting, self.clock()),
            store=self.options.name,
            entity=entity.name,
            codec=codec,
            size=len(body),
            stored=len(stored),
            sha256=digest,
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
            ClaimMissing: the store, or another one that this isn't, has lost the body.
            ClaimCorrupt: it isn't the one that was stored.
            BrokerError: the store can't be asked.
        """
        await trio.lowlevel.checkpoint()
        if claim.store != self.options.name:
            raise ClaimMissing(f"it is in the store {claim.store!r}, this one is another")
        if max(claim.size, claim.stored) > self.options.max_body:
            raise ClaimCorrupt(f"{claim.size} bytes, of {self.options.max_body} (claims.max_body)")
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
        Whether a copy of that message was completed.

        Raises:
            BrokerError: the store can't be asked.
        """
        try:
            await self._timely(lambda: self.store.get(claim.done, 0))
        except (ClaimMissing, ClaimCorrupt):
            return False  # noqa: ASYNC910 the store has answered
        return True

    async def complete(self, claim: Claim) -> None:
        """
        Return once the store knows that the message was completed, or can't be told soon.

        In that case the body stays until its age removes it. A cancellation is as long.
        """
        reason = "no answer in time"
        with trio.move_on_after(LAST_STEP, shield=True):
            try:
                await self.store.put(claim.done, b"")
                reason = ""
            except BrokerError as error:
                reason = str(error)
        if reason:
            self.observer.report(ClaimLeftBehind(claim=claim.id, reason=reason))
        await trio.lowlevel.checkpoint()

    async def forget(self, kept: Sequence[Claim]) -> None:
        """Return when bodies that were never sent are removed; what fails is told, and goes old."""
        await trio.lowlevel.checkpoint()
        left = {claim.id: "no answer in time" for claim in kept}
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

    def _packed(self, body: bytes) -> tuple[bytes, str, str]:
        """The bytes to store, their codec and their digest."""
        stored, codec = body, Compression.NONE
        if self.options.compression is Compression.ZSTD:
            smaller = compressed(body)
            if len(smaller) < len(body):
                stored, codec = smaller, Compression.ZSTD
        return stored, codec.value, hashlib.sha256(stored).hexdigest()

    def _unpacked(self, claim: Claim, data: bytes) -> Message:
        claim.check(data)
        if claim.codec == Compression.ZSTD.value:
            data = decompressed(data, claim.size)
        elif len(data) != claim.size:
            raise ClaimCorrupt(f"{len(data)} bytes, and the body had {claim.size}")
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
