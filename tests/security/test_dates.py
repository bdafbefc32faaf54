"""A date without a time zone, as SDKs send it, and values that can't be stored."""

import random
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.security.fuzz import entry, open_harness

TOPIC = EntityPath("news")
LOCAL = datetime(2020, 1, 1, 12, 30, 0, 5)
DATES = {"local": LOCAL, "utc": datetime(2020, 1, 1, tzinfo=UTC), "first": datetime.min}
DATED = Rule(name="dated", filter=CorrelationFilter(properties=DATES))


def store(folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(folder / "a.db", VirtualClock(), random.Random(0))


async def test_a_date_without_a_time_zone_ends_no_store(tmp_path: Path) -> None:
    sql = SqlFilter(expression="at > @p", parameters={"p": LOCAL})
    action = SqlAction(expression="SET at = @p", parameters={"p": LOCAL})
    async with store(tmp_path) as broker:
        await broker.create_topic(TOPIC, TopicProperties())
        await broker.create_subscription(TOPIC, "one", SubscriptionProperties(), DATED)
        await broker.create_rule(TOPIC, "one", Rule(name="sql", filter=sql, action=action))
        await broker.update_rule(TOPIC, "one", DATED)
        assert not broker.failed.is_set()
    async with store(tmp_path) as broker:
        dated = await broker.inspect_rule(TOPIC, "one", "dated")
        written = await broker.inspect_rule(TOPIC, "one", "sql")

    assert dated.filter == DATED.filter
    assert (written.filter, written.action) == (sql, action)


@pytest.mark.parametrize(
    "value", ["\ud800", 2**63, -(2**63) - 1, object(), [[[]] * 2] * 2 + [object()], {1, 2}]
)
@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_a_rule_with_a_value_that_no_store_can_hold_is_refused(
    value: object, kind: str, tmp_path: Path
) -> None:
    rule = Rule(name="bad", filter=CorrelationFilter(properties={"p": value}))
    in_memory = MemoryBroker(VirtualClock(), random.Random(0))
    async with store(tmp_path) if kind == "embedded" else in_memory as broker:
        await broker.create_topic(TOPIC, TopicProperties())
        with pytest.raises(InvalidRequest):
            await broker.create_subscription(TOPIC, "one", SubscriptionProperties(), rule)
        await broker.create_subscription(TOPIC, "one", SubscriptionProperties())
        with pytest.raises(InvalidRequest):
            await broker.create_rule(TOPIC, "one", rule)
        with pytest.raises(InvalidRequest):
            await broker.update_rule(TOPIC, "one", rule)
        await broker.send(TOPIC, [Message()])

        assert [each.name for each in await broker.list_rules(TOPIC, "one")] == ["$Default"]


def test_clients_get_a_date_back_as_they_sent_it() -> None:
    """Over the management API, as azure-servicebus sends a date of Python without a zone."""
    path = "/news/Subscriptions/all/Rules/dated?api-version=2021-05"
    value = "<Value i:type='d6p1:dateTime' xmlns:d6p1='http://www.w3.org/2001/XMLSchema'>{}</Value>"
    pairs = "".join(
        f"<KeyValueOfstringanyType><Key>{key}</Key>{value.format(text)}</KeyValueOfstringanyType>"
        for key, text in (("local", "2020-01-01T12:30:00.000005"), ("utc", "2020-01-01T00:00:00Z"))
    )
    wanted = f"<Filter i:type='CorrelationFilter'><Properties>{pairs}</Properties></Filter>"

    async def ask() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            async with open_harness(Path(folder)) as harness:
                made = await harness.rest.ask("PUT", path, entry("RuleDescription", wanted))
                assert made.status == 201, made.body
                read = await harness.rest.ask("GET", path)
                harness.check()
                return read.body

    body = trio.run(ask)
    assert b">2020-01-01T12:30:00.000005</Value>" in body
    assert b">2020-01-01T00:00:00Z</Value>" in body
