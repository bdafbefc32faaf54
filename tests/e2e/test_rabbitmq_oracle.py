"""
The broker of the endpoint `rabbitmq` beside RabbitMQ itself: both get the same random requests of
one client, and give the same answers. So RabbitMQ is the model.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any

import attrs
import pika
import pytest

from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rabbitmq_site import SiteNodes
from tests.harness.blocking import blocking, pika_connection
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, Release

pytestmark = [pytest.mark.live, pytest.mark.slow]

SEEDS = 12
STEPS = 80
LOOK = 0.01  # seconds
QUEUES: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "rejecting": {"x-dead-letter-exchange": "dead"},
    "short": {
        "x-max-length": 3,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "plain",
    },
    "full": {"x-max-length": 2, "x-overflow": "reject-publish"},
}
EXCHANGES = {"direct": "direct", "all": "fanout", "topics": "topic", "marked": "headers"}
DEAD = "dead"  # the exchange of dead letters, a topic, too
KEYS = ("a", "a.b", "a.b.c", "plain", "short", "full", "rejecting")
PATTERNS = (*KEYS[:3], "#", "*.b", "a.#", "a.*.c")
MARKS = ({}, {"kind": "x"}, {"kind": "x", "vip": True})
MATCHES = ({}, {"kind": "x"}, {"x-match": "any", "kind": "y", "vip": True})
TYPE = re.compile(r" of type '\w+'")  # of an argument, which the gateway doesn't name
# Headers of dead letters that have a time, or that only some releases have.
UNSTEADY = ("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason")


@attrs.frozen
class Step:
    """A request, by the name of a method of `Side`."""

    name: str
    arguments: tuple[Any, ...]


def steps(seed: int) -> Sequence[Step]:
    rng = random.Random(seed)
    queues, exchanges = list(QUEUES), [*EXCHANGES, DEAD]
    kinds: Mapping[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
        "publish": (
            30,
            lambda: (
                rng.choice(["", *exchanges]),
                rng.choice(KEYS),
                rng.choice(MARKS),
                rng.random() < 0.3,
            ),
        ),
        "get": (20, lambda: taken(rng.choice(queues), rng.random() < 0.4)),
        "settle": (
            20,
            lambda: (
                rng.randrange(100),
                rng.choice(["ack", "reject", "reject", "requeue"]),
                rng.random() < 0.3,
            ),
        ),
        "declare_queue": (6, lambda: (rng.choice(queues), rng.random() < 0.1)),
        "declare_exchange": (4, lambda: (rng.choice(exchanges), rng.random() < 0.1)),
        "bind": (
            10,
            lambda: (
                rng.choice(queues),
                rng.choice(exchanges),
                rng.choice(PATTERNS),
                rng.choice(MATCHES),
            ),
        ),
        "unbind": (
            3,
            lambda: (
                rng.choice(queues),
                rng.choice(exchanges),
                rng.choice(PATTERNS),
                rng.choice(MATCHES),
            ),
        ),
        "bind_exchange": (
            3,
            lambda: (rng.choice(exchanges), rng.choice(exchanges), rng.choice(PATTERNS)),
        ),
        "purge": (2, lambda: (rng.choice(queues),)),
        "delete_queue": (2, lambda: (rng.choice(queues), rng.random() < 0.5)),
        "delete_exchange": (1, lambda: (rng.choice(exchanges), rng.random() < 0.5)),
        "recover": (1, tuple),
    }
    first = [Step("declare_queue", (each, False)) for each in queues]
    first += [Step("declare_exchange", (each, False)) for each in exchanges]
    first += [Step("bind", ("plain", DEAD, "#", {}))]
    names = rng.choices(list(kinds), [weight for weight, _ in kinds.values()], k=STEPS)
    return [*first, *(Step(name, kinds[name][1]()) for name in names)]


def taken(queue: str, takes: bool) -> tuple[str, bool]:
    """
    RabbitMQ drops the oldest message of a queue that is too long also when one comes back as its
    channel ends, and here the next publish does so: so none comes back.
    """
    return queue, takes or "x-max-length" in QUEUES[queue]


@attrs.define(eq=False)
class Side:
    """A broker, as its client sees it."""

    port: int
    held: list[int] = attrs.field(factory=list)  # delivery tags without a settlement
    published: int = 0
    connection: Any = None
    channel: Any = None

    def open(self) -> None:
        self.connection = pika_connection(self.port)
        self._open_channel()

    def _open_channel(self) -> None:
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.held.clear()

    def answer(self, step: Step) -> object:
        try:
            return getattr(self, step.name)(*step.arguments)
        except pika.exceptions.ChannelClosedByBroker as error:
            self._open_channel()
            return error.reply_code, TYPE.sub("", error.reply_text)
        except pika.exceptions.UnroutableError:
            return "returned"
        except pika.exceptions.NackError:
            return "refused"

    def counts(self) -> Mapping[str, int | None]:
        """The messages of each queue; None: it isn't there."""
        found: dict[str, int | None] = {}
        for queue in QUEUES:
            looking = self.connection.channel()
            try:
                found[queue] = looking.queue_declare(queue, passive=True).method.message_count
                looking.close()
            except pika.exceptions.ChannelClosedByBroker:
                found[queue] = None
        return found

    def clear(self) -> None:
        for queue in QUEUES:
            self.channel.queue_delete(queue)
        for exchange in (*EXCHANGES, DEAD):
            self.channel.exchange_delete(exchange)
        self.connection.close()

    # --- requests

    def publish(self, exchange: str, key: str, marks: Any, mandatory: bool) -> object:
        self.published += 1
        properties = pika.BasicProperties(headers=dict(marks), delivery_mode=2)
        body = b"%d" % self.published
        return self.channel.basic_publish(exchange, key, body, properties, mandatory=mandatory)

    def get(self, queue: str, takes: bool) -> object:
        method, properties, body = self.channel.basic_get(queue, auto_ack=takes)
        if method is None:
            return None
        if not takes:
            self.held.append(method.delivery_tag)
        where = method.exchange, method.routing_key, method.redelivered, method.message_count
        return body, *where, method.delivery_tag, steady(properties.headers)

    def settle(self, choice: int, kind: str, multiple: bool) -> None:
        if not self.held:
            return
        at = choice % len(self.held)
        tag = self.held[at]
        del self.held[slice(0, at + 1) if multiple else at]
        if kind == "ack":
            self.channel.basic_ack(tag, multiple)
        else:
            self.channel.basic_nack(tag, multiple, requeue=kind == "requeue")

    def recover(self) -> None:
        self.held.clear()
        self.channel.basic_recover(requeue=True)

    def declare_queue(self, queue: str, other: bool) -> object:
        arguments = {"x-message-ttl": 3_600_000} if other else dict(QUEUES[queue])
        return self.channel.queue_declare(queue, durable=True, arguments=arguments).method.queue

    def declare_exchange(self, exchange: str, other: bool) -> object:
        kind = "topic" if exchange == DEAD else EXCHANGES[exchange]
        kind = {"direct": "fanout"}.get(kind, "direct") if other else kind
        return self.channel.exchange_declare(exchange, kind, durable=True).method.NAME

    def bind(self, queue: str, exchange: str, key: str, matches: Any) -> object:
        return self.channel.queue_bind(queue, exchange, key, dict(matches)).method.NAME

    def unbind(self, queue: str, exchange: str, key: str, matches: Any) -> object:
        return self.channel.queue_unbind(queue, exchange, key, dict(matches)).method.NAME

    def bind_exchange(self, destination: str, source: str, key: str) -> object:
        return self.channel.exchange_bind(destination, source, key).method.NAME

    def purge(self, queue: str) -> object:
        return self.channel.queue_purge(queue).method.message_count

    def delete_queue(self, queue: str, if_empty: bool) -> object:
        return self.channel.queue_delete(queue, if_empty=if_empty).method.message_count

    def delete_exchange(self, exchange: str, if_unused: bool) -> object:
        return self.channel.exchange_delete(exchange, if_unused=if_unused).method.NAME


def steady(headers: Any) -> object:
    found = {name: each for name, each in (headers or {}).items() if name not in UNSTEADY}
    deaths = [{**each, "time": None} for each in found.get("x-death", ())]
    return {**found, "x-death": deaths}


def compared(rabbit: Side, ours: Side, seed: int) -> list[str]:
    """The first difference, with the steps that lead to it."""
    told: list[str] = []
    for side in (rabbit, ours):
        side.open()
    for step in steps(seed):
        expected, found = rabbit.answer(step), ours.answer(step)
        told.append(f"{step.name}{step.arguments}: {expected}")
        if expected != found:
            return [*told, f"ours: {found}"]
        ends = monotonic() + PATIENCE
        while (counts := rabbit.counts()) != (others := ours.counts()):
            if monotonic() > ends:
                return [*told, f"RabbitMQ has {counts}, ours {others}"]
            sleep(LOOK)
    for side in (rabbit, ours):
        side.clear()
    return []


@pytest.mark.parametrize("release", [INSTALLED, RABBITMQ_4], ids=["RabbitMQ 3", "RabbitMQ 4"])
async def test_the_broker_of_the_endpoint_answers_as_rabbitmq(
    gateways: Gateways, site_nodes: SiteNodes, release: Release
) -> None:
    config = broker_config().replace('"service-bus-http"', '"rabbitmq"')
    _, port = await site_nodes.emptied(release)
    gateway = await gateways.start(config, name="gateway")
    for seed in range(SEEDS):
        sides = Side(port), Side(gateway.port)
        differs = await blocking(compared, *sides, seed)
        assert not differs, f"seed {seed}:\n" + "\n".join(differs)
