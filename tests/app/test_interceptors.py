"""A namespace in a process: what the status of a gateway without a pair says of it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.app.assembly.interceptors import Interception
from gateway.app.namespaces import make_abilities
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import StorageFull
from gateway.domain.health.abilities import AbilityState
from gateway.domain.message import Message
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory import MemoryBroker

ORDERS = EntityPath("orders")
CONFIG = '[namespaces.here]\nurl = "memory:"'


class FullStore(MemoryBroker):
    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        raise StorageFull("less than 100 bytes are free on the disk")


async def test_the_only_store_of_a_gateway_shows_that_its_disk_is_full(tmp_path: Path) -> None:
    config = parse(CONFIG, source="x.toml", folder=tmp_path, environ={}).config
    namespace, runtime = config.namespaces["here"], Runtime()
    watch = runtime.abilities["here"] = make_abilities(namespace, runtime)
    store = FullStore(runtime.now, random.Random(0), hooks=LocalHooks(heard=watch.heard))
    broker = Interception(config=config, runtime=runtime, is_alone=True).around(store, namespace)

    async with store:
        await store.create_queue(ORDERS, QueueProperties())
        with pytest.raises(StorageFull):
            await broker.send(ORDERS, [Message(body=b"1")])
    send = watch.status()["send"]

    assert send.state is AbilityState.NO
    assert "100 bytes are free" in send.error
    assert "disk" in send.remedy
