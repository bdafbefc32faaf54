"""Faults that no chaos scenario has, on real processes under load."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.checker.operations import Acked, Invoked, fingerprint
from gateway.demo.traffic import Traffic
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from tests.e2e.harmed import (
    AT_HOME,
    PRIMARY_NAME,
    RATE,
    SOME,
    failovers,
    mean,
    more,
    named,
    proxied,
    started,
    under_load,
    until,
)
from tests.e2e.installation import ENTITIES, LABEL, LONGEST_SEND, Installation, client
from tests.e2e.processes import GatewayProcess, Gateways
from tests.harness.chaos_proxy import ChaosProxy, Link, Pass, Refuse, Slow
from tests.harness.patience import PATIENCE
from tests.harness.syscalls import injected

pytestmark = pytest.mark.slow

FLAPS = 6
AT_ONCE = {"failover_interval": "0s"}
POISON = b"this kills a syphon"


# The network


async def test_a_slow_way_to_the_primary_loses_nothing(gateways: Gateways) -> None:
    run, proxy = await proxied(gateways)

    async with under_load(run):
        run.excuse(run.primary)
        proxy.fault = Slow(size=512, delay=0.05, jitter=0.05)
        await more(run, AcceptedBy.PRIMARY)
        proxy.fault = Pass()

    assert run.traffic.errors == 0


async def test_a_primary_that_only_the_syphon_reaches_makes_no_ping_pong(
    gateways: Gateways,
) -> None:
    run, proxy = await proxied(gateways, syphons=1, pairing=AT_ONCE, is_patient=True)
    [syphon] = run.syphon
    syphon.config = syphon.config.replace(f":{proxy.port}", f":{run.primary.port}")
    await syphon.stop()
    await syphon.start()

    async with under_load(run):
        run.excuse(run.primary)
        proxy.fault = Refuse()
        proxy.reset_all()
        await more(run, AcceptedBy.BACKLOG, 60)
        await until(lambda: run.syphoned >= 60)
        await until(lambda: failovers(run) >= len(ENTITIES))
        moves = failovers(run)
        proxy.fault = Pass()

    assert run.traffic.errors == 0
    assert moves == len(ENTITIES)


async def test_a_flapping_primary_moves_an_entity_no_more_than_it_flaps(
    gateways: Gateways,
) -> None:
    run, proxy = await proxied(gateways, pairing=AT_ONCE, is_patient=True)

    async with under_load(run):
        for _ in range(FLAPS):
            run.excuse(run.primary)
            proxy.fault = Refuse()
            proxy.reset_all()
            await more(run, AcceptedBy.BACKLOG)
            proxy.fault = Pass()
            await more(run, AcceptedBy.PRIMARY)

    assert run.traffic.errors == 0
    assert len(ENTITIES) <= failovers(run) <= FLAPS * len(ENTITIES)


async def test_each_error_of_a_connect_diverts(gateways: Gateways) -> None:
    run = await started(gateways, pairing=AT_ONCE)

    async with under_load(run):
        await run.kill(run.primary)  # so that each attempt needs a new connection
        await more(run, AcceptedBy.BACKLOG)
        for error in ("ENETUNREACH", "EHOSTUNREACH", "ECONNABORTED", "ETIMEDOUT"):
            async with injected(run.gateway.pid, f"connect:error={error}:when=1+2"):
                await more(run, AcceptedBy.BACKLOG)

    assert run.gateway.count("connection_crashed") == 0


# Names


@pytest.mark.parametrize("meaning", [(), (f"{PRIMARY_NAME} silent",)], ids=["unknown", "silent"])
async def test_a_name_that_nobody_resolves_diverts(
    gateways: Gateways, tmp_path: Path, meaning: tuple[str, ...]
) -> None:
    run = await named(gateways, tmp_path / "names", pairing=AT_ONCE)

    async with under_load(run):
        mean(tmp_path / "names", *meaning)
        await run.kill(run.primary)  # so that the next connection needs the name
        await run.primary.start()
        await more(run, AcceptedBy.BACKLOG, 100)
        mean(tmp_path / "names", AT_HOME)
        await run.back_on_the_primary()

    assert run.traffic.errors == 0


async def test_a_primary_that_moves_to_another_address_is_found(
    gateways: Gateways, tmp_path: Path
) -> None:
    run = await named(gateways, tmp_path / "names", pairing=AT_ONCE)

    async with under_load(run):
        mean(tmp_path / "names", f"{PRIMARY_NAME} 127.0.0.9")  # where no process listens
        await run.kill(run.primary)
        await run.primary.start()
        await more(run, AcceptedBy.BACKLOG)
        mean(tmp_path / "names", AT_HOME)
        await run.back_on_the_primary()

    assert run.traffic.errors == 0


# Brokers and syphons


async def test_a_primary_that_comes_back_empty_gets_what_was_diverted(gateways: Gateways) -> None:
    run = await started(gateways, is_patient=True)
    with trio.fail_after(PATIENCE):
        async with client(run.gateway) as producer:
            await producer.send(EntityPath("orders"), [Message(message_id="forgotten")])
            await run.kill(run.primary)
            for file in run.primary.folder.glob("broker.db*"):
                file.unlink()
            accepted_by = await send_accepted_by(
                producer, EntityPath("orders"), [Message(message_id="diverted")]
            )
            run.primary.config = run.primary.config.replace("queues = []", 'queues = ["orders"]')
            await run.primary.start()
        await run.drain()

        async with (
            client(run.primary) as broker,
            broker.open_receiver(EntityPath("orders")) as receiver,
        ):
            [delivery] = await receiver.receive(10)

    assert accepted_by is AcceptedBy.BACKLOG
    assert delivery.message.message_id == "diverted"


@attrs.frozen
class Deadly(Pass):
    """Kills the syphon that sends the poison message, before the message arrives."""

    syphon: Installation
    victims: list[int] = attrs.field(factory=list, eq=False)

    async def up(self, link: Link, data: bytes) -> None:
        if POISON in data:
            [syphon] = self.syphon.syphon
            self.victims.append(syphon.pid)
            await self.syphon.kill(syphon)
            link.reset()
            return
        await link.send_up(data)


async def test_a_syphon_that_dies_at_one_message_again_and_again_moves_the_others(
    gateways: Gateways,
) -> None:
    run, proxy = await proxied(gateways, syphons=1, pairing=AT_ONCE)
    poison = Message(message_id="poison", body=POISON)

    async with under_load(run):
        run.excuse(run.primary)
        proxy.fault = Refuse()
        proxy.reset_all()
        await more(run, AcceptedBy.BACKLOG)
        async with client(run.gateway) as producer:
            await producer.send(EntityPath("orders"), [poison])
        run.received += [
            Invoked(at=0.0, message_id="poison", entity="orders", fingerprint=fingerprint(poison)),
            Acked(at=0.0, message_id="poison"),
        ]
        proxy.fault = deadly = Deadly(run)
        for deaths in range(1, 4):
            await until(lambda deaths=deaths: len(deadly.victims) >= deaths)
            await run.syphon[0].wait()
            await run.syphon[0].start()
        await more(run, AcceptedBy.PRIMARY)
        proxy.fault = Pass()

    assert len(set(deadly.victims)) >= 3


# More gateways than one, and other configurations


async def test_gateways_with_another_view_each_lose_nothing(gateways: Gateways) -> None:
    run = await started(gateways, syphons=1, is_patient=True)
    proxies = [ChaosProxy("127.0.0.1", run.primary.port, rng=random.Random(n)) for n in range(3)]
    others: list[GatewayProcess] = []
    traffics = [Traffic(deadline=LONGEST_SEND) for _ in proxies]
    for number, proxy in enumerate(proxies):
        await gateways.nursery.start(proxy.serve)
        config = run.gateway.config.replace(f"@{run.primary.address}", f"@127.0.0.1:{proxy.port}")
        config = config.replace(f'bind = "{run.gateway.address}"', 'bind = "127.0.0.1:0"')
        others.append(await gateways.start(config, name=f"other-{number}"))

    async with under_load(run), AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(client(gateway)) for gateway in others]
        proxies[1].fault = Refuse()
        async with trio.open_nursery() as nursery:
            for number, (broker, traffic) in enumerate(zip(producers, traffics, strict=True)):
                name = f"other-{number}"
                nursery.start_soon(traffic.produce, broker, EntityPath("orders"), name, RATE)
            await until(lambda: all(traffic.acknowledged >= SOME for traffic in traffics))
            for traffic in traffics:
                traffic.stopping = True
        proxies[1].fault = Pass()
        run.received += [record for traffic in traffics for record in traffic.records]
    codes = [await gateway.stop() for gateway in others]

    assert [set(traffic.accepted_by_counts) for traffic in traffics] == [
        {AcceptedBy.PRIMARY},
        {AcceptedBy.BACKLOG},
        {AcceptedBy.PRIMARY},
    ]
    assert failovers(run) == 0
    assert codes == [0, 0, 0]


async def test_a_syphon_with_the_sides_confused_or_of_another_pair_moves_nothing(
    gateways: Gateways,
) -> None:
    run = await started(gateways, syphons=1, is_patient=True)
    [syphon] = run.syphon
    await syphon.stop()
    wrong = {
        "confused": syphon.config.replace('primary = "primary"', 'primary = "x"')
        .replace('secondary = "secondary"', 'secondary = "primary"')
        .replace('primary = "x"', 'primary = "secondary"'),
        "another": syphon.config.replace('id = "test"', 'id = "other"').replace(
            f'label = "{LABEL}"', 'label = "west"'
        ),
    }
    await run.kill(run.primary)
    async with client(run.gateway) as producer:
        await producer.send(EntityPath("orders"), [Message(message_id="kept")])
    await run.primary.start()

    for name, config in wrong.items():
        mistaken = await gateways.start(config, name=name, command=("syphon",))
        await trio.sleep(3.0)  # the syphon looks for queues every two seconds
        assert mistaken.count("syphoned") == mistaken.count("dead_lettered") == 0
        await mistaken.stop()
    await syphon.start()
    await run.drain()

    assert run.syphoned == 1


async def test_a_backlog_of_more_queues_than_are_configured_now_comes_home(
    gateways: Gateways,
) -> None:
    run = await started(gateways, is_patient=True)
    last = backlog.queue_name(LABEL, 3)
    await run.kill(run.primary)
    async with client(run.gateway) as producer, client(run.secondary) as secondary:
        number = 0
        with trio.fail_after(PATIENCE):
            while not (await secondary.inspect(last)).active:
                number += 1
                await producer.send(EntityPath("orders"), [Message(message_id=str(number))])
    await run.gateway.stop()
    run.gateway.config = run.gateway.config.replace("backlog_queues = 4", "backlog_queues = 1")
    await run.primary.start()
    await run.gateway.start()

    await run.drain()

    async with client(run.primary) as primary:
        arrived = (await primary.inspect(EntityPath("orders"))).active
    assert arrived == number
