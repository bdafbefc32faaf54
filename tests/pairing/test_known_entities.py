"""An order for an entity that nobody knows is refused: by process, records, file and primary."""

from typing import cast

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, NotAuthorized
from gateway.domain.events.control import ControlCalled
from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
)
from gateway.domain.operators.control import Action, Operator, Order
from gateway.domain.topics.topology import TopicProperties
from gateway.pairing.control import Control
from gateway.pairing.entity_cache import KnownEntities
from gateway.pairing.records.reader import RecordReader
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.faults import NAMESPACE, Fault, Hang, Operation, Refuse
from tests.pairing.harness import BILLS, LABEL, Harness, control_of, send, virtual_time

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")


async def steered(harness: Harness) -> Control:
    pair = await harness.pair()
    control = control_of(harness, pair)
    control.known = KnownEntities(primary=harness.primary.broker)
    await send(pair)()  # so that the process has seen `orders`
    return control


async def refusal_of(control: Control, *targets: str, action: Action = Action.FAILOVER) -> str:
    """Empty: the order is in effect."""
    try:
        await control.order(Order(action=action, targets=targets), ANN)
    except InvalidRequest as error:
        return str(error)
    return ""


async def test_a_misspelt_entity_is_refused_with_the_similar_one(harness: Harness) -> None:
    control = await steered(harness)

    text = await refusal_of(control, "ordres")

    assert text.startswith("targets: nobody knows 'ordres': did you mean orders?")
    assert "can't be asked" not in text
    assert control.state().pins == ()
    assert harness.events.of(ControlCalled) == []


async def test_a_forced_order_is_in_effect_for_what_comes_later(harness: Harness) -> None:
    control = await steered(harness)
    order = Order(action=Action.FAILOVER, targets=("later/*", "soon"), force=True)

    await control.order(order, ANN)
    back = await refusal_of(control, "soon", "later/*", action=Action.FAILBACK)

    assert back == ""  # an order in force names them


@pytest.mark.parametrize("target", ["*", "orders", "ORD*", "planned", "rare", "news", "n*"])
async def test_an_entity_is_known_by_process_file_and_primary(
    harness: Harness, target: str
) -> None:
    control = await steered(harness)
    control.known = KnownEntities(primary=harness.primary.store, configured=("planned",))
    await harness.primary.store.create_queue(EntityPath("rare"), QueueProperties())
    await harness.primary.store.create_topic(EntityPath("news"), TopicProperties())

    assert await refusal_of(control, target) == ""


@pytest.mark.parametrize(
    ("fault", "doubt", "seconds"),
    [
        (Hang(), "it doesn't answer", 4.0),
        (Refuse(lambda: NotAuthorized("no right Manage")), "no right Manage", 0.0),
    ],
)
async def test_while_the_primary_cannot_be_asked_only_known_entities_are_ordered(
    harness: Harness, fault: Fault, doubt: str, seconds: float
) -> None:
    control = await steered(harness)
    harness.primary.fail(fault, Operation.MANAGE)
    began = trio.current_time()

    assert await refusal_of(control, "orders") == ""
    assert f"the primary can't be asked: {doubt}" in await refusal_of(control, "rare")
    assert trio.current_time() - began == seconds


async def test_an_entity_in_trouble_is_known_though_the_primary_never_took_from_it(
    harness: Harness,
) -> None:
    pair = await harness.pair()
    control = control_of(harness, pair)
    control.known = KnownEntities(primary=harness.primary.broker)
    harness.primary.fail(Refuse())
    await send(pair, entity=BILLS)()

    assert await refusal_of(control, "bills") == ""


async def test_an_entity_that_another_process_names_is_known(harness: Harness) -> None:
    control = await steered(harness)
    harness.primary.fail(Refuse())
    now = harness.clock()
    reader = RecordReader(secondary=harness.secondary.store, label=LABEL, clock=harness.clock)
    other = ProcessRecord(
        process="p2",
        host="there",
        kind="serve",
        pid=1,
        started=now,
        at=now,
        interval=30.0,
        gateway=GatewayRecord(diverted=CountByName(total=1, most={"elsewhere": 1})),
    )
    reader.known = PairRecords(alive=(other,), unknown="")
    control.reader = reader

    assert await refusal_of(control, "elsewhere") == ""


async def test_the_primary_is_asked_for_a_name_first_and_for_lists_only_if_it_has_it_not(
    harness: Harness,
) -> None:
    control = await steered(harness)
    for name in ("rare", "seldom"):
        await harness.primary.store.create_queue(EntityPath(name), QueueProperties())
    harness.primary.asked.clear()

    assert await refusal_of(control, "rare") == ""
    by_name = [each.entity for each in harness.primary.asked]
    harness.primary.asked.clear()
    assert await refusal_of(control, "seld*") == ""

    assert by_name == [EntityPath("rare")]
    assert [each.entity for each in harness.primary.asked] == [NAMESPACE]


class NeverListed:
    """A primary that is asked for names alone."""

    def __init__(self, inner: MemoryBroker) -> None:
        self.inner = inner

    async def list_queues(self, *_: object, **__: object) -> None:
        raise AssertionError("nobody needs a list")

    list_topics = list_queues

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


async def test_a_topic_is_asked_for_by_its_name_and_what_is_neither_is_refused(
    harness: Harness,
) -> None:
    control = await steered(harness)
    store = harness.primary.store
    await store.create_topic(EntityPath("news"), TopicProperties())
    known = KnownEntities(primary=cast("Broker", NeverListed(store)))

    await known.refuse_unknown(["news"], lambda: ())
    control.known = KnownEntities(primary=store)

    assert "nobody knows 'olds'" in await refusal_of(control, "olds")
