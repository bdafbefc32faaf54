"""
The login of a client, which passes between client and primary, and is repeated at another
connection. So the primary decides who may connect, and with which rights.

The answer to `connection.start`, with the client's password or token, is kept in memory as long as
the client is connected, and nowhere else.
"""

import hashlib
import secrets
from typing import Final

import attrs
import trio
from pamqp import base, commands, decode

from gateway.domain.access import TokenClaim
from gateway.wire.rabbitmq.frames import (
    METHOD,
    OVERHEAD,
    UNREADABLE,
    ProtocolError,
    method_frame,
)
from gateway.wire.rabbitmq.relayed import (
    PROTOCOL_HEADER,
    FrameReader,
    RelayedFrame,
)

MAX_CHANNELS: Final = 2047  # of a connection: RabbitMQ's default of `channel_max`
_SALT: Final = secrets.token_bytes(16)  # a digest of another process says nothing
_IN_ONE_STEP: Final = ("PLAIN", "AMQPLAIN")
_NO_LIMIT: Final = 2**31  # bytes: zero stands for "no limit" (AMQP 0-9-1, 1.4.2.6)
_FIRST_FRAME: Final = 16 * 1024  # bytes, before the login: twice RabbitMQ 4's `initial_frame_max`
_MOST_STEPS: Final = 16  # frames of a client; RabbitMQ's own mechanisms take three or four


class LoginFailed(Exception):
    """The primary refuses the login that it accepted before."""


@attrs.define(eq=False)
class ClientLogin:
    done: trio.Event = attrs.field(factory=trio.Event)
    start: RelayedFrame | None = None  # the primary's, as the client gets it
    tune: RelayedFrame | None = None
    is_opening: bool = False  # the client has sent `connection.open`
    is_in_one_step: bool = False  # with all credentials in `start-ok`
    vhost: str = ""
    heartbeat: float = 0.0  # seconds; 0: none
    max_frame: int = _FIRST_FRAME  # bytes of a payload; both sides' limit after the login
    _frame_max: tuple[int, int] = (0, 0)  # that of the primary, and of the client; 0: no limit
    digest: bytes = b""  # of the credentials
    mechanism: str = ""  # of SASL, the client's
    user: str = ""  # empty: the mechanism doesn't show it
    # The password or token of PLAIN (RFC 4616) or AMQPLAIN; None: another mechanism has it.
    secret: str | None = attrs.field(default=None, repr=False)
    claim: TokenClaim | None = None  # by which a policy admitted it; None: the primary did
    max_channels: int = MAX_CHANNELS
    hears_alarms: bool = False  # of the primary, by `connection.blocked`
    hears_cancels: bool = False  # of consumers, by `basic.cancel`
    _answers: list[bytes] = attrs.field(
        factory=list, repr=False
    )  # the client's frames, in their order
    _credentials: list[bytes] = attrs.field(factory=list, repr=False)

    @property
    def is_done(self) -> bool:
        return self.done.is_set()

    def from_client(self, frame: RelayedFrame) -> base.Frame:
        """
        Note the client's part; return its method, which takes milliseconds to read.

        Raises:
            ProtocolError: it isn't part of a login.
        """
        method = frame.method()
        match method:
            case commands.Connection.StartOk() as start:
                self._begin(start)
            case commands.Connection.SecureOk() as secure:
                self._credentials.append(_bytes_of(secure.response))
                self.is_in_one_step = False
            case commands.Connection.TuneOk() as tune:
                self.heartbeat = float(tune.heartbeat or 0)
                self.max_channels = min(tune.channel_max or MAX_CHANNELS, MAX_CHANNELS)
                self._frame_max = self._frame_max[0], tune.frame_max or 0
            case commands.Connection.Open() as opened:
                self.vhost = opened.virtual_host
                self.is_opening = True
                self._digest()
            case commands.Connection.Close() | commands.Connection.CloseOk():
                return method
            case other:
                raise ProtocolError(f"{other.name} before the login")
        self._answers.append(frame.data)
        if len(self._answers) > _MOST_STEPS:
            raise ProtocolError("a login of too many steps")
        return method

    def update_secret(self, secret: object) -> None:
        """The client has a new token, as users of OAuth2 each hour (RabbitMQ's 10.70)."""
        start = self._start_ok()
        if start.mechanism == "PLAIN":
            token = _bytes_of(secret).decode(errors="replace")
            self.secret = token
            start.response = f"\0{self.user}\0{token}"
            self._answers[0] = method_frame(0, start)

    def _start_ok(self) -> commands.Connection.StartOk:
        """Raises: ProtocolError: the client began with something else."""
        [arrived] = FrameReader().feed(self._answers[0])
        start = arrived.method()
        if not isinstance(start, commands.Connection.StartOk):
            raise ProtocolError("a login without connection.start-ok")
        return start

    def _begin(self, start: commands.Connection.StartOk) -> None:
        response = _bytes_of(start.response)
        self.mechanism = start.mechanism
        self._credentials = [start.mechanism.encode(), response]
        self.is_in_one_step = start.mechanism in _IN_ONE_STEP
        capabilities = (start.client_properties or {}).get("capabilities")
        if isinstance(capabilities, dict):
            self.hears_alarms = bool(capabilities.get("connection.blocked"))
            self.hears_cancels = bool(capabilities.get("consumer_cancel_notify"))
        if (credentials := _credentials_in(start)) is not None:
            self.user, self.secret = credentials

    def _digest(self) -> None:
        digest = hashlib.sha256(_SALT)
        for part in self._credentials:
            digest.update(len(part).to_bytes(4) + part)
        self.digest = digest.digest()
        self._credentials.clear()

    def from_primary(self, frame: RelayedFrame) -> bytes:
        """The frame for the client, which can't show the primary its certificate."""
        if frame.kind == METHOD:
            match frame.method():
                case commands.Connection.Start() as start:
                    self.start = _without_certificates(start, frame)
                    return self.start.data
                case commands.Connection.Tune() as tune:
                    self.tune = frame
                    self._frame_max = tune.frame_max or 0, self._frame_max[1]
                case commands.Connection.OpenOk():
                    self.max_frame = min(each or _NO_LIMIT for each in self._frame_max) - OVERHEAD
                    self.done.set()
        return frame.data

    async def repeat(self, stream: trio.abc.Stream) -> None:
        """
        Log in at another connection. Returns when it is open.

        Raises:
            LoginFailed: the primary refuses.
            trio.BrokenResourceError: the connection ended.
        """
        reader = FrameReader(self.max_frame)
        await stream.send_all(PROTOCOL_HEADER)
        for answer in self._answers[:-1]:
            await _next(stream, reader)
            await stream.send_all(answer)
        # `connection.open` follows `tune-ok` at once: the primary sends nothing in between.
        await stream.send_all(self._answers[-1])
        await _next(stream, reader)


def _credentials_in(start: commands.Connection.StartOk) -> tuple[str, str] | None:
    """User and password, or token; None: the mechanism has neither, or they are malformed."""
    response = _bytes_of(start.response)
    if start.mechanism == "PLAIN":  # RFC 4616: authorization, user, password
        user, _, _ = response.partition(b"\0")[2].partition(b"\0")
        secret = response.rpartition(b"\0")[2]
        return user.decode(errors="replace"), secret.decode(errors="replace")
    if start.mechanism != "AMQPLAIN":
        return None
    try:
        _, table = decode.field_table(len(response).to_bytes(4) + response)
    except UNREADABLE:
        return None
    found = table.get("LOGIN"), table.get("PASSWORD")
    return str(found[0]), str(found[1])


def _without_certificates(start: commands.Connection.Start, frame: RelayedFrame) -> RelayedFrame:
    offered = str(start.mechanisms).split()
    if "EXTERNAL" not in offered:
        return frame
    start.mechanisms = " ".join(each for each in offered if each != "EXTERNAL")
    return RelayedFrame(METHOD, 0, method_frame(0, start))


async def _next(stream: trio.abc.Stream, reader: FrameReader) -> None:
    """Return when the primary's next step has arrived, which is one frame."""
    while True:
        data = await stream.receive_some()
        if not data:
            raise trio.BrokenResourceError
        for frame in reader.feed(bytes(data)):
            method = frame.method()
            if isinstance(method, commands.Connection.Close):
                raise LoginFailed(method.reply_text)
            return


def _bytes_of(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()
