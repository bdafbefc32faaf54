"""An encrypted connection between two gateways: contents of frames, over a stream."""

import attrs
import trio

from gateway.extensions.cluster.handshake import (
    CLIENT_HELLO,
    LENGTH,
    SERVER_HELLO,
    TAG,
    ChannelError,
    ClientHandshake,
    SealedFrames,
    ServerHandshake,
    is_begun,
)


@attrs.define(eq=False)
class Reader:
    """Reads exact numbers of bytes from a stream."""

    stream: trio.abc.Stream
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)

    async def read(self, size: int, *, hello: bool = False) -> bytes:
        """
        Return the next `size` bytes; empty if the stream ends before the first.

        `hello`: bytes that no gateway would send are refused at once, without waiting for more.

        Raises:
            ChannelError: the stream ends within them.
            trio.BrokenResourceError: the connection broke.
        """
        buffer = self._buffer
        while len(buffer) < size:
            if hello and not is_begun(bytes(buffer)):
                raise ChannelError("the other side is no gateway of a cluster")
            chunk = await self.stream.receive_some()
            if not chunk:
                if buffer:
                    raise ChannelError("the connection ended within a frame")
                return b""
            buffer += chunk
        found = bytes(buffer[:size])
        del buffer[:size]
        return found


@attrs.define(eq=False)
class Channel:
    """A connection whose other side has proven that it has the secret."""

    stream: trio.abc.Stream
    _reader: Reader
    _frames: SealedFrames

    async def send(self, content: bytes) -> None:
        """
        Send one frame. Cancelled, it may be cut: close the stream then.

        Raises:
            trio.BrokenResourceError: the connection broke.
        """
        await self.stream.send_all(self._frames.seal(content))

    async def receive(self, most: int) -> bytes | None:
        """
        The content of the next frame; None: the other side has ended the connection.

        Raises:
            ChannelError: the frame has more than `most` bytes, or isn't the other side's next one.
            trio.BrokenResourceError: the connection broke.
        """
        return await _receive(self._reader, self._frames, most)


async def connect(stream: trio.abc.Stream, handshake: ClientHandshake) -> Channel:
    """
    Agree on a channel as the side that has connected. The caller's scope is the deadline.

    Raises:
        ChannelError: the other side isn't the gateway that is meant, or has another secret.
        trio.BrokenResourceError: the connection broke.
    """
    reader = Reader(stream)
    await stream.send_all(handshake.hello)
    hello = await reader.read(SERVER_HELLO, hello=True)
    if not hello:
        raise ChannelError(
            "it has refused this gateway: compare the secrets of both, and its address with the"
            " one by which it is known here"
        )
    frames = handshake.agree(hello)
    await _check_proof(reader, frames)
    await stream.send_all(frames.seal(b""))
    return Channel(stream, reader, frames)


async def accept(stream: trio.abc.Stream, handshake: ServerHandshake) -> Channel | None:
    """
    Agree on a channel as the side that was connected to; None: the other side has left without a
    byte. The caller's scope is the deadline.

    Raises:
        ChannelError: the other side means another gateway, or has another secret.
        trio.BrokenResourceError: the connection broke.
    """
    reader = Reader(stream)
    hello = await reader.read(CLIENT_HELLO, hello=True)
    if not hello:
        return None
    own, frames = handshake.agree(hello)
    await stream.send_all(own + frames.seal(b""))
    await _check_proof(reader, frames)
    return Channel(stream, reader, frames)


async def _check_proof(reader: Reader, frames: SealedFrames) -> None:
    if await _receive(reader, frames, 0) is None:
        raise ChannelError(
            "the other side has ended the connection: it has another secret or another address in"
            " mind"
        )


async def _receive(reader: Reader, frames: SealedFrames, most: int) -> bytes | None:
    length = await reader.read(LENGTH)
    if not length:
        return None
    size = int.from_bytes(length)
    if not TAG <= size <= most + TAG:
        raise ChannelError(f"a frame of {size} bytes: up to {most + TAG} expected")
    sealed = await reader.read(size)
    if not sealed:
        raise ChannelError("the connection ended within a frame")
    return frames.open(sealed)
