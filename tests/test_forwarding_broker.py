"""A wrapper offers what the broker or receiver inside it offers, and nothing past its own work."""

import random
from typing import Any

import attrs
import pytest

from gateway import capabilities
from gateway.brokers.joined.receiver import JoinedReceiver
from gateway.brokers.joined.session import JoinedSession
from gateway.brokers.joined.settling import JoinedSettling
from gateway.brokers.routing_broker import RoutingBroker
from gateway.capabilities import (
    BoundsSends,
    ChangesBody,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    DeletesSent,
    Describes,
    Diverts,
    Enlists,
    EnlistsSchedules,
    EnlistsState,
    FailsFast,
    HidesMessages,
    Identifies,
    KeepsMessages,
    Peeks,
    PeeksState,
    Placed,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
    ReplacesKey,
    Schedules,
    SendsMany,
    SendsTogether,
    SendsToSubscriptions,
    SessionReceiver,
    Sessions,
    SettlesByToken,
    SettlesMany,
    Streams,
    TakesBack,
    Topology,
    Transacts,
    Updates,
    Verifies,
    Visibility,
    WritesDeadLetters,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.topics.topology import TopicProperties
from gateway.extensions.claims.broker import ClaimedBroker
from gateway.extensions.claims.packing import PackedBroker
from gateway.extensions.claims.receiver import ClaimedReceiver
from gateway.extensions.claims.session import ClaimedSession
from gateway.extensions.claims.unpacking import PackedReceiver
from gateway.extensions.entity_memory.broker import RememberingBroker
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.session import MovedSession
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogReceiver
from gateway.extensions.receive_in_outage.backlog_session import BacklogSession
from gateway.extensions.receive_in_outage.broker import TwoSidedBroker
from gateway.extensions.receive_in_outage.two_sided_session import TwoSidedSession
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.receiver import ShardsOfQueue
from gateway.extensions.sharding.sessions import ShardedSession
from gateway.forwarding_broker import ForwardingBroker, ReceiveWrapper, SendWrapper
from gateway.frontends.amqp.receivers import OpenedReceiver
from gateway.frontends.rabbitmq_broker.counted_receiver import CountedReceiver
from gateway.interception.broker import InterceptedBroker, InterceptedReceiver, InterceptedSession
from gateway.offering import Wrapper, capabilities_of, offered, required
from gateway.pairing.broker import PairedBroker
from gateway.pairing.gathering import GatheringBroker
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock

TOPIC = EntityPath("t")
EVERYWHERE = {
    Clears,
    DeletesByVersion,
    Describes,
    PeeksState,
    SendsTogether,
    Streams,
    Topology,
    Updates,
    Verifies,
}  # passed on by all brokers
# Passed on by none but interceptors: who opens a namespace asks it alone.
NOWHERE = {DeletesSent, ReplacesKey, SendsToSubscriptions, WritesDeadLetters}
OF_SHARDS: set[type] = {
    Clears,
    DeletesByVersion,
    DeletesMessages,
    Describes,
    Diverts,
    EnlistsSchedules,
    FailsFast,
    Peeks,
    PeeksState,
    Schedules,
    SendsMany,
    Sessions,
    Transacts,
    Updates,
    Verifies,
}  # changed by the brokers of a sharded queue

# Of each wrapper: the capabilities in whose work it takes part, and those that it passes on. It
# withholds all others. A new capability or wrapper has its line here, or the test fails.
WRAPPERS: dict[type[Wrapper], tuple[set[type], set[type], set[type]]] = {
    InterceptedBroker: (
        {
            Clears,
            DeletesMessages,
            Diverts,
            FailsFast,
            Identifies,
            Peeks,
            PeeksState,
            Placed,
            Schedules,
            SendsMany,
            Sessions,
            Transacts,
        },
        {EnlistsSchedules, SendsToSubscriptions, WritesDeadLetters},
        {BoundsSends},
    ),
    CountedReceiver: (
        {ReceivesAvailable, SettlesMany},
        set(),
        {
            ChangesBody,
            Enlists,
            EnlistsState,
            HidesMessages,
            KeepsMessages,
            Polls,
            ReceivesDeferred,
            SettlesByToken,
            TakesBack,
        },
    ),
    InterceptedReceiver: (
        {HidesMessages, Polls, ReceivesAvailable, ReceivesDeferred, SettlesMany},
        {ChangesBody, Enlists, EnlistsState, KeepsMessages, SettlesByToken, TakesBack},
        set(),
    ),
    ClaimedBroker: (
        {Diverts, FailsFast, Peeks, Schedules, SendsMany, Sessions},
        {DeletesMessages, Identifies, Placed},
        {BoundsSends, EnlistsSchedules, Transacts},
    ),
    PackedBroker: (
        {Diverts, Peeks, SendsMany},
        {Identifies, Placed, Schedules, Sessions},
        {BoundsSends, DeletesMessages, EnlistsSchedules, FailsFast, Transacts},
    ),
    PairedBroker: (
        {
            BoundsSends,
            Diverts,
            EnlistsSchedules,
            Identifies,
            Schedules,
            SendsMany,
            Transacts,
        },
        {DeletesMessages, Peeks, Placed, Sessions},
        {FailsFast},
    ),
    GatheringBroker: (
        {Diverts},
        {
            BoundsSends,
            DeletesMessages,
            EnlistsSchedules,
            Identifies,
            Peeks,
            Placed,
            Schedules,
            SendsMany,
            Sessions,
            Transacts,
        },
        {FailsFast},
    ),
    ShardedBroker: (
        OF_SHARDS,
        {BoundsSends, Identifies, Placed},
        set(),
    ),
    RememberingBroker: (
        {Describes, Topology, Updates},
        {
            BoundsSends,
            DeletesMessages,
            Diverts,
            EnlistsSchedules,
            FailsFast,
            Identifies,
            Peeks,
            Placed,
            Schedules,
            SendsMany,
            Sessions,
            Transacts,
        },
        set(),
    ),
    TwoSidedBroker: (
        {Describes, Peeks, Sessions},
        {
            BoundsSends,
            DeletesMessages,
            Diverts,
            EnlistsSchedules,
            FailsFast,
            Identifies,
            Placed,
            Schedules,
            SendsMany,
            Transacts,
        },
        set(),
    ),
    BacklogReceiver: (
        {ReceivesAvailable, ReceivesDeferred, SettlesMany},
        {KeepsMessages, TakesBack},
        {ChangesBody, Enlists, EnlistsState, HidesMessages, Polls, SettlesByToken},
    ),
    BacklogSession: (
        {ReceivesAvailable, ReceivesDeferred, SettlesMany},
        {KeepsMessages, TakesBack},
        {ChangesBody, Enlists, EnlistsState, HidesMessages, Polls, SettlesByToken},
    ),
    TwoSidedSession: (
        {EnlistsState, SettlesMany},
        {Enlists, KeepsMessages, ReceivesAvailable, ReceivesDeferred, TakesBack},
        {ChangesBody, HidesMessages, Polls, SettlesByToken},
    ),
    JoinedSession: (
        {KeepsMessages, ReceivesAvailable, ReceivesDeferred, SettlesMany, TakesBack},
        set(),
        {ChangesBody, Enlists, EnlistsState, HidesMessages, Polls, SettlesByToken},
    ),
    ShardPlaces: (
        OF_SHARDS,
        {Identifies, Placed},
        {BoundsSends},
    ),
    MovedBroker: (
        OF_SHARDS,
        {Identifies, Placed},
        {BoundsSends},
    ),
    MovedSession: (
        {
            Enlists,
            EnlistsState,
            KeepsMessages,
            ReceivesAvailable,
            ReceivesDeferred,
            SettlesMany,
            TakesBack,
        },
        set(),
        {ChangesBody, HidesMessages, Polls, SettlesByToken},
    ),
    JoinedReceiver: (
        {
            ChangesBody,
            Enlists,
            KeepsMessages,
            Polls,
            ReceivesAvailable,
            ReceivesDeferred,
            SettlesMany,
            TakesBack,
        },
        set(),
        {EnlistsState, HidesMessages, SettlesByToken},
    ),
    ShardedSession: (
        {
            Enlists,
            EnlistsState,
            KeepsMessages,
            ReceivesAvailable,
            ReceivesDeferred,
            SettlesMany,
            TakesBack,
        },
        set(),
        {ChangesBody, HidesMessages, Polls, SettlesByToken},
    ),
    ClaimedReceiver: (
        {ReceivesAvailable, ReceivesDeferred, SettlesMany},
        set(),
        {
            ChangesBody,
            Enlists,
            EnlistsState,
            HidesMessages,
            KeepsMessages,
            Polls,
            SettlesByToken,
            TakesBack,
        },
    ),
    PackedReceiver: (
        {ReceivesAvailable, ReceivesDeferred, SettlesMany},
        set(),
        {
            ChangesBody,
            Enlists,
            EnlistsState,
            HidesMessages,
            KeepsMessages,
            Polls,
            SettlesByToken,
            TakesBack,
        },
    ),
    OpenedReceiver: (
        {Enlists, ReceivesAvailable, ReceivesDeferred, SettlesMany},
        set(),
        {
            ChangesBody,
            EnlistsState,
            HidesMessages,
            KeepsMessages,
            Polls,
            SettlesByToken,
            TakesBack,
        },
    ),
}


def around(wrapper: type[Wrapper], inner: object) -> Wrapper:
    """A wrapper around `inner`, which is only asked for its capabilities."""
    fields = {"inner": inner, "_address": "", "_sources": {}, "queues": ShardsOfQueue}
    return object.__new__(type(wrapper.__name__, (wrapper,), fields))


def able(owner: Any) -> object:
    """A broker or receiver with all capabilities that there are."""
    return type("Able", tuple(set(capabilities_of(owner)) - {Updates}), {})()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_capability_is_changed_passed_on_or_withheld(wrapper: type[Wrapper]) -> None:
    changes, forwards, withholds = WRAPPERS[wrapper]
    is_broker = issubclass(wrapper, ForwardingBroker)
    if is_broker:
        forwards, withholds = forwards | EVERYWHERE - changes, withholds | NOWHERE - forwards
    inner = able(Broker if is_broker else Receiver)
    made = around(wrapper, inner)

    there = {
        each: offered(made, each) for each in capabilities_of(Broker if is_broker else Receiver)
    }

    assert set(there) == changes | forwards | withholds
    assert {each for each, part in there.items() if part is made} == changes
    assert {each for each, part in there.items() if part is inner} == forwards
    assert {each for each, part in there.items() if part is None} == withholds


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_offers_nothing_that_is_missing_inside(wrapper: type[Wrapper]) -> None:
    made = around(wrapper, object())
    every = (*capabilities_of(Broker), *capabilities_of(Receiver))

    there = {each for each in every if offered(made, each) is not None}

    assert there == {
        InterceptedBroker: {Placed},
        PairedBroker: {BoundsSends, Diverts},
    }.get(wrapper, set())


def test_the_rule_holds_for_all_wrappers_of_the_gateway() -> None:
    def below(wrapper: type[Wrapper]) -> set[type[Wrapper]]:
        each = set(wrapper.__subclasses__())
        return each.union(*map(below, each))

    def name(wrapper: type[Wrapper]) -> str:  # attrs makes a second class, and the first stays
        return f"{wrapper.__module__}.{wrapper.__qualname__}"

    found = {name(each) for each in below(Wrapper) if each.__module__.startswith("gateway.")}

    parts = (ForwardingBroker, ReceiveWrapper, RoutingBroker, SendWrapper)
    parts += (ClaimedSession, InterceptedSession, JoinedSettling)
    assert found - set(map(name, parts)) == set(map(name, WRAPPERS))


def test_each_protocol_is_registered_as_a_capability() -> None:
    protocols = {
        each
        for each in vars(capabilities).values()
        if getattr(each, "_is_protocol", False)
        and each.__module__.startswith(capabilities.__name__)
    }

    named = {*capabilities_of(Broker), *capabilities_of(Receiver)}

    assert protocols - named == {SessionReceiver, Visibility}  # those that `Sessions` opens; a port


@attrs.define(eq=False)
class Wrapped(ForwardingBroker):
    inner: Broker


async def test_topics_are_made_through_a_wrapper() -> None:
    topics = MemoryBroker(VirtualClock(), random.Random(0))

    await required(Wrapped(topics), Topology).create_topic(TOPIC, TopicProperties())

    assert [info.path for info in await topics.list_topics()] == [TOPIC]


def test_a_missing_capability_is_not_supported_and_named() -> None:
    wrapped = Wrapped(object())  # type: ignore[arg-type]

    with pytest.raises(NotSupported, match="this namespace doesn't support topics"):
        required(wrapped, Topology)
