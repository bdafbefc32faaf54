"""
The state that the parts of one client's connection share: who is at both ends, and the bytes that
wait for either.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.domain.health.send_counters import SendCounters
from gateway.frontends.rabbitmq.alarm import PrimaryAlarm
from gateway.frontends.rabbitmq.by_pair import WatchesEntities
from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.channel_setup import LaidConsumer
from gateway.frontends.rabbitmq.known_logins import KnownLogins
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.frontends.rabbitmq.login import ClientLogin
from gateway.frontends.rabbitmq.login_policies import LoginPolicies
from gateway.frontends.rabbitmq.outbox import Outbox
from gateway.frontends.rabbitmq.sign_of_life import SignOfLife
from gateway.frontends.rabbitmq.topology import ClientTopology
from gateway.net.clients import ClientLoad
from gateway.net.shared_turns import RelayTurns
from gateway.ports import Broker
from gateway.wire.rabbitmq.frames import method_frame

Dial = Callable[[], Awaitable[trio.abc.Stream]]

_MOST_RIGHTS: Final = 50_000  # some megabytes: a thousand logins with fifty exchanges each
CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@attrs.frozen(kw_only=True)
class RelayTarget:
    """The primary, and the pair, of all connections of one endpoint."""

    dial: Dial
    broker: Broker
    states: WatchesEntities
    login_timeout: float  # seconds
    slow: float  # seconds without a confirm, after which a publish goes through the pair
    vhost: str  # of the namespace: the pair knows no other
    sends: SendCounters  # of the pair, which counts what goes through it itself
    policies: LoginPolicies  # of who may log in, and publish, while the primary is away
    # Logins and the exchanges to which they have published, with the primary's consent.
    may_publish: Bounded[tuple[bytes, str], None] = attrs.field(
        factory=lambda: Bounded(_MOST_RIGHTS, renews=True)
    )
    logins: KnownLogins = attrs.field(factory=KnownLogins)
    known: KnownTopology = attrs.field(factory=KnownTopology)
    alarm: PrimaryAlarm = attrs.field(factory=PrimaryAlarm)
    door: trio.Lock = attrs.field(factory=trio.Lock)  # of who dials while the primary is away
    life: SignOfLife = attrs.field(init=False)

    @life.default
    def _its_life(self) -> SignOfLife:
        return SignOfLife(self.dial, self.states, self.slow / 2)


@attrs.define(eq=False)
class DownQueues:
    """
    The queues of one client whose node is down, while the primary itself is well.

    RabbitMQ answers 404 for such a queue, which closes the channel, and cancels its consumers. That
    is an outage of the queue, not an error of the client: requests are answered from what is
    remembered, the channel is opened again, and consumers wait until the node is back. `changes`
    counts all that is to be done about them.
    """

    names: set[str] = attrs.field(factory=set, init=False)
    # Channels that are closed at the primary, or are to be, and that are to be opened again.
    closed: list[RelayedChannel] = attrs.field(factory=list, init=False)
    # Consumers that the primary has cancelled, and didn't say why.
    cancelled: list[tuple[RelayedChannel, commands.Basic.Cancel]] = attrs.field(
        factory=list, init=False
    )
    changes: Changes = attrs.field(factory=Changes, init=False)

    def lose(self) -> None:
        """The connection upstream is lost: all channels and consumers are laid again."""
        self.closed.clear()
        self.cancelled.clear()


@attrs.define(eq=False)
class ClientSession:
    """The state of one client's connection, which its parts read and write."""

    target: RelayTarget
    login: ClientLogin = attrs.field(factory=ClientLogin, init=False)
    topology: ClientTopology = attrs.field(factory=ClientTopology, init=False)
    channels: dict[int, RelayedChannel] = attrs.field(factory=dict, init=False)
    down: DownQueues = attrs.field(factory=DownQueues, init=False)
    to_client: Outbox = attrs.field(factory=Outbox, init=False)
    to_primary: Outbox = attrs.field(factory=Outbox, init=False)
    turns: RelayTurns = attrs.field(factory=RelayTurns, init=False)
    load: ClientLoad | None = attrs.field(default=None, init=False)  # None: it has no limits
    # Logged in at the primary; each channel says whether it's open there.
    is_on_wire: bool = attrs.field(default=False, init=False)
    is_greeted: bool = attrs.field(default=False, init=False)  # by the gateway, in an outage
    hears_of_alarm: bool = attrs.field(default=False, init=False)  # by `connection.blocked`
    # The client has asked for the end, which the primary, or the gateway, is to answer.
    is_closing: bool = attrs.field(default=False, init=False)
    is_ending: bool = attrs.field(default=False, init=False)

    def answer(self, channel: int, method: base.Frame) -> None:
        """Send the client a method of the gateway's own."""
        self.to_client.put_answer(method_frame(channel, method))

    def ask(self, channel: int, method: base.Frame) -> None:
        """Send the primary a method of the gateway's own."""
        self.to_primary.put(method_frame(channel, method))

    def close_channel(self, channel: RelayedChannel) -> None:
        """Forget a channel whose close both sides know of."""
        del self.channels[channel.number]
        channel.drop_awaited()
        for consumer in channel.setup.consumers.values():
            self.record_end(consumer)

    def suspend_consumers(self) -> None:
        """Let the consumers of queues that are down wait until they aren't."""
        for channel in self.channels.values():
            for consumer in channel.setup.consumers.values():
                if consumer.method.queue in self.down.names:
                    consumer.waits = True

    def record_end(self, consumer: LaidConsumer) -> None:
        """A consumer has ended: its queue may end with it."""
        self.topology.record_end(consumer.method.queue)
