"""Transfers of one connection that have no answer yet; beyond a limit, the socket isn't read."""

import math
from collections.abc import Callable
from typing import Final

import attrs
import trio

from gateway.domain.errors import QuotaExceeded
from gateway.net.clients import ClientLoad
from gateway.net.turns import RequestTurn, Waiters
from gateway.net.visits import acquire_turn_to_read

# Bytes read at once, from which on their processing needs a turn: they are a part of a large
# message, or many frames. 50 attaches, of 100 bytes each, take 10 ms.
MUCH: Final = 2 * 1024
# Bytes that are processed at once: as many as take half a millisecond at most, about. A request of
# another client waits for several passes of the event loop, and in each pass for a piece.
SMALLEST_PIECE: Final = 128  # an attach
LARGEST_PIECE: Final = 64 * 1024
QUICK: Final = 0.000125  # seconds
SLOW: Final = 0.0005


def _unlimited() -> ClientLoad | None:
    return None


@attrs.define(eq=False)
class Pending:
    """
    Counts transfers with their bytes, and outcomes, which have none.

    Credit alone doesn't hold back clients that ignore it, such as azure-servicebus for Python, and
    doesn't limit bytes.
    """

    _most: int
    _most_bytes: int
    # The load of the connection's client at present; None: the client has no limits.
    _load_now: Callable[[], ClientLoad | None] = attrs.field(default=_unlimited, kw_only=True)
    # Once set, nothing more is read until nothing is pending.
    closing: bool = attrs.field(default=False, init=False)
    count: int = attrs.field(default=0, init=False)
    bytes: int = attrs.field(default=0, init=False)
    _less: Waiters = attrs.field(factory=Waiters, init=False)
    # Transfers with their bytes, as a part of all pending transfers, and the client that they count
    # for.
    _transfers: int = attrs.field(default=0, init=False)
    _load: ClientLoad | None = attrs.field(default=None, init=False)
    # Bytes that are held after the answers to their transfers, and the client that they count for.
    _held: int = attrs.field(default=0, init=False)
    _holder: ClientLoad | None = attrs.field(default=None, init=False)
    # Bytes of messages that haven't arrived whole, and the client that they count for.
    _unfinished: int = attrs.field(default=0, init=False)
    _sender: ClientLoad | None = attrs.field(default=None, init=False)

    def begin(self, size: int) -> None:
        """
        Add a transfer of `size` bytes.

        Raises:
            Busy: the client has as many requests in flight as it may, over all its connections.
        """
        if not self._transfers:
            self._load = self._load_now()
        if self._load is not None:
            self._load.begin(size)
        self._transfers += 1
        self.add(size)

    def finish(self, size: int) -> None:
        """Note that a transfer is answered, or never will be."""
        self._transfers -= 1
        if self._load is not None:
            self._load.answered(size)
        self.drop(size)

    def hold(self, size: int, *, in_flight: int = 0) -> None:
        """
        Count bytes of the client that the gateway holds although their transfer is answered, or is
        about to be: as many as `in_flight` count already.

        Raises:
            QuotaExceeded: the client has as many bytes in flight as it may, over all its
                connections. Waiting wouldn't help: the client itself may have to end the
                transaction that holds them.
        """
        if not self._held:
            self._holder = self._load_now()
        if self._holder is not None:
            if self._holder.is_full_besides(in_flight):
                raise QuotaExceeded("this client has as many bytes in flight as it may")
            self._holder.hold(size)
        self._held += size

    def release(self, size: int) -> None:
        """Note that the bytes aren't held any more."""
        self._held -= size
        if self._holder is not None:
            self._holder.release(size)

    def record_unfinished(self, size: int) -> None:
        """Note how many bytes have arrived of messages that aren't whole yet."""
        more = size - self._unfinished
        if not more:
            return
        if not self._unfinished:
            self._sender = self._load_now()
        self._unfinished = size
        if self._sender is None:
            return
        if more > 0:
            self._sender.hold(more)
        else:
            self._sender.release(-more)
        if not size:
            self._sender.finish(self)

    def forget(self) -> None:
        """Note that the connection has ended, and its transfers with it."""
        self.record_unfinished(0)
        self.release(self._held)
        if self._load is not None and self._transfers:
            self._load.answered(self.bytes, self._transfers)
            self._transfers = 0
        # Work that ends after its connection counts for nobody.
        self._load = self._holder = None

    def add(self, size: int = 0) -> None:
        self.count += 1
        self.bytes += size

    def drop(self, size: int = 0, count: int = 1) -> None:
        self.count -= count
        self.bytes -= size
        self._less.wake()

    @property
    def full(self) -> bool:
        too_much = self.count >= self._most or self.bytes >= self._most_bytes
        return too_much or (self.closing and self.count > 0)

    @property
    def _crowded(self) -> ClientLoad | None:
        """
        The client whose connections have too many bytes together, some of them here; None: this
        connection may be read. One connection may always be read until its messages are whole: all
        of them would wait for one another for ever.
        """
        if self._unfinished and self._sender is not None and self._sender.is_full:
            return None if self._sender.may_finish(self) else self._sender
        crowded = self._load is not None and self.bytes > 0 and self._load.is_full
        return self._load if crowded else None

    async def wait_for_room(self) -> None:
        while True:
            if self.full:
                await self._less.wait()
            elif (crowded := self._crowded) is not None:
                await crowded.wait_for_less()
            else:
                return

    async def wait_until_none(self) -> None:
        """Read nothing more, and return when everything is answered."""
        self.closing = True
        while self.count:
            await self._less.wait()


@attrs.define(eq=False)
class HeldBackStream(trio.abc.HalfCloseableStream):
    """
    A stream that isn't read from while too many transfers or bytes are pending. A large part of its
    data comes in pieces, each of which takes half a millisecond: a frame may cost a hundred times
    as much as another one of its size, and somebody may be about to connect. A piece is returned
    when it is the client's turn, which lasts until `record_processed`: so a client's connections
    have one piece processed at a time, and other clients' frames come in between.
    """

    _inner: trio.abc.Stream
    _pending: Pending
    # Returns the bytes of messages that haven't arrived whole.
    _unfinished: Callable[[], int] = attrs.field(default=int, kw_only=True)
    # Read, and not returned yet: a call that is cancelled while it waits loses nothing.
    _data: bytes | bytearray = attrs.field(default=b"", init=False)
    _is_much: bool = attrs.field(default=False, init=False)  # what was read last
    _turn: RequestTurn | None = attrs.field(default=None, init=False)
    _size: int = attrs.field(default=SMALLEST_PIECE, init=False)  # bytes of the next piece
    _returned: float = attrs.field(default=math.inf, init=False)  # when a whole piece was

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self._release_turn()
        if self._data:
            await trio.lowlevel.checkpoint()  # between two pieces others may run
        else:
            self._pending.record_unfinished(self._unfinished())
            await self._pending.wait_for_room()
            self._data = await self._inner.receive_some(max_bytes)
            self._is_much = len(self._data) >= MUCH
        if self._is_much:
            self._turn = await acquire_turn_to_read(min(self._size, len(self._data)))
            if self._turn is not None:
                await self._turn.give_way()
        return self._next_piece()

    def _next_piece(self) -> bytes | bytearray:
        data, size = self._data, self._size
        if self._turn is None or len(data) <= size:
            self._data = b""
            return data
        self._data, self._returned = data[size:], trio.current_time()
        return data[:size]

    def record_processed(self) -> None:
        """
        Note that what `receive_some` returned is processed: choose the size of the next piece by
        the time that this took, and let another connection of the client have its turn.
        """
        took = trio.current_time() - self._returned
        if took > SLOW:
            self._size = max(SMALLEST_PIECE, self._size // 2)
        elif 0 <= took < QUICK:
            self._size = min(LARGEST_PIECE, self._size * 2)
        self._returned = math.inf
        self._release_turn()

    def _release_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """End the sending half, if the stream has halves; those of TLS and WebSocket have none."""
        if isinstance(self._inner, trio.abc.HalfCloseableStream):
            await self._inner.send_eof()

    async def aclose(self) -> None:
        self._release_turn()
        await self._inner.aclose()
