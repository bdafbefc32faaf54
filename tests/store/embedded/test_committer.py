"""A disk that is full before the commit: refused, and everything is as before."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.brokers.lock_tokens import lock_tokens
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import StorageFull
from gateway.domain.message import Abandon, Defer, Message, ReceiveMode, Settlement
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import Store
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Incoming, State
from gateway.store.local.step import Step
from tests.harness.store_work import connection_of
from tests.store.embedded.stores import ORDERS

NOW = Now(10**15, 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "a.db", lambda: 7, Disk())
    yield store
    store.close()


@pytest.fixture
def committer(store: Store) -> Committer:
    namespace = Namespace(
        max_message_size=10**6,
        max_queues=10,
        create_missing=False,
        store=store,
        new_token=lock_tokens(random.Random(0)),
        packing=Packing(lambda _message: (b"", 0), lambda _content: Message()),
        compile_sql=lambda _filter: lambda _message: True,
        compile_action=lambda _action: lambda message: message,
    )
    committer = Committer(store, namespace)
    committer.run([Step(ORDERS, NOW, lambda space, now: space.create(ORDERS, LARGE, now))])
    return committer


LARGE = QueueProperties(max_size_in_megabytes=5120)


def step(work: Callable[[Queue], Any]) -> Step[Any]:
    return Step(ORDERS, NOW, lambda space, _now: work(space.find(ORDERS)))


def sends(size: int) -> Step[Any]:
    return step(lambda queue: queue.send([Incoming(content=b"x" * size, size=size)], NOW))


def takes(limit: int) -> Step[Any]:
    return step(lambda queue: queue.receive(State.ACTIVE, limit, ReceiveMode.PEEK_LOCK, NOW))


def settles(token: str, settlement: Settlement) -> Step[Any]:
    return step(lambda queue: queue.settle(token, settlement, NOW))


def limit_pages(store: Store, more: int) -> None:
    pages = connection_of(store).pragma("page_count")
    connection_of(store).execute(f"PRAGMA max_page_count = {pages + more}")


def test_a_full_store_refuses_the_batch_and_goes_on(store, committer):
    committer.run([sends(100), sends(200)])
    limit_pages(store, 2)
    refused = [sends(100), sends(100_000), takes(1)]
    committer.run(refused)
    limit_pages(store, 1000)
    info, taken, more = step(lambda queue: queue.info()), takes(10), sends(100)
    committer.run([info, taken, more])

    assert [type(each.error) for each in refused] == [StorageFull] * 3
    assert not committer.failed
    assert (info.result().active, info.result().size) == (2, 300)
    assert [each.row.size for each in taken.result()] == [100, 200]
    assert more.error is None


def test_a_queue_that_was_made_in_a_refused_batch_is_not_there(store, committer):
    limit_pages(store, 2)
    other = EntityPath("other")
    creates = Step(other, NOW, lambda space, now: space.create(other, LARGE, now))
    committer.run([creates, sends(100_000)])
    limit_pages(store, 1000)
    again = Step(other, NOW, lambda space, now: space.create(other, LARGE, now))
    committer.run([again])

    assert isinstance(creates.error, StorageFull)
    assert again.error is None


def test_receiving_alone_writes_nothing(store, committer):
    committer.run([sends(100)])
    commits = "SELECT commits FROM store"
    before = connection_of(store).execute(commits).get
    committer.run([takes(1)])

    assert connection_of(store).execute(commits).get == before


@pytest.mark.parametrize("moves", ["defers", "hides"])
def test_a_message_that_is_put_elsewhere_keeps_its_attempts(store, committer, moves):
    committer.run([sends(100)])
    for _ in range(3):
        takes_one = takes(1)
        committer.run([takes_one])
        committer.run([settles(takes_one.result()[0].token, Abandon())])
    takes_one = takes(1)
    committer.run([takes_one])
    committer.tidy()
    if moves == "hides":
        committer.run([settles(takes_one.result()[0].token, Abandon())])
        committer.run([step(lambda queue: queue.visibility.dequeue(1, 10**9, NOW))])
    else:
        committer.run([settles(takes_one.result()[0].token, Defer())])
    found = connection_of(store).execute("SELECT times FROM delivered").get

    assert found == {"defers": 4, "hides": 5}[moves]  # whatever has been committed since
