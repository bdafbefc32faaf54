"""The stores of versioned values: a SQLite file, a folder, a container of Azurite."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.brokers.storage_queue.blob_values import AzureBlobValues
from gateway.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from gateway.listening.intents import update
from gateway.listening.stores.folder import FolderValues
from gateway.listening.stores.sqlite import SqliteValues
from gateway.listening.stores.values import Store, Values
from gateway.ports import ABSENT, ANY
from tests.extensions.claims.stores import account_at, now
from tests.harness.azurite import azurite
from tests.harness.patience import PATIENCE

ROOT = Path(__file__).parents[2]
INCREMENT = """
import sys, trio
from pathlib import Path
from gateway.listening.intents import update
from gateway.listening.stores.folder import FolderValues
from gateway.listening.stores.sqlite import SqliteValues

async def main(kind, path):
    async def count(store):
        for _ in range(50):
            await update(store, "n", lambda value: b"%d" % (int(value or 0) + 1), attempts=10_000)
    if kind == "sqlite":
        async with SqliteValues(Path(path)) as store:
            await count(store)
    else:
        await count(FolderValues(Path(path)))

trio.run(main, *sys.argv[1:])
"""


@asynccontextmanager
async def sqlite(path: Path) -> AsyncIterator[SqliteValues]:
    async with SqliteValues(path / "values.db") as store:
        yield store


@asynccontextmanager
async def folder(path: Path) -> AsyncIterator[FolderValues]:
    yield FolderValues(path / "values")


@asynccontextmanager
async def blob(path: Path) -> AsyncIterator[AzureBlobValues]:
    async with (
        azurite(path / "azurite", service="blob") as (_, port),
        AzureBlobValues.of(account_at(port), "values", now, 1024 * 1024) as store,
    ):
        await store.prepare()
        yield store


KINDS = {"sqlite": (sqlite, "values.db"), "folder": (folder, "values")}


@pytest.mark.live
@pytest.mark.parametrize("kind", [sqlite, folder, blob])
async def test_a_value_changes_only_from_the_version_that_was_read(kind, tmp_path):
    async with kind(tmp_path) as store:
        assert await store.read("a/b") == (None, ABSENT)
        first = await store.write("a/b", b"1\n2", if_match=ABSENT)
        assert await store.read("a/b") == (b"1\n2", first)
        for stale in (ABSENT, '"77"'):
            with pytest.raises(PreconditionFailed):
                await store.write("a/b", b"no", if_match=stale)
            with pytest.raises(PreconditionFailed):
                await store.write("a/b", None, if_match=stale)
        second = await store.write("a/b", b"1\n2", if_match=first)
        third = await store.write("a/b", b"3", if_match=ANY)
        assert await store.read("a/b") == (b"3", third)

        assert await store.write("a/b", None, if_match=third) == ABSENT
        assert await store.read("a/b") == (None, ABSENT)
        assert await store.write("a/b", None, if_match=ANY) == ABSENT
        assert await store.write("a/b", None, if_match=ABSENT) == ABSENT
        with pytest.raises(PreconditionFailed):
            await store.write("a/b", b"no", if_match=third)
        again = await store.write("a/b", b"", if_match=ABSENT)
        assert await store.read("a/b") == (b"", again)
        assert len({first, second, third, again}) == 4


@pytest.mark.live
@pytest.mark.parametrize("kind", [sqlite, folder, blob])
async def test_concurrent_updates_are_all_there(kind, tmp_path):
    async def count(store: Store) -> None:
        for _ in range(5):
            await update(store, "n", lambda value: b"%d" % (int(value or 0) + 1), attempts=1000)

    async with kind(tmp_path) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(count, store)

        assert (await store.read("n"))[0] == b"20"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_processes_share_a_store(kind, tmp_path):
    opened, place = KINDS[kind]
    command = [sys.executable, "-c", INCREMENT, kind, str(tmp_path / place)]
    run = partial(trio.run_process, command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(run)

    async with opened(tmp_path) as store:
        assert (await store.read("n"))[0] == b"150"


@pytest.mark.parametrize("kind", [sqlite, folder])
async def test_keys_are_listed_and_values_survive_the_process(kind, tmp_path):
    keys = ("a", "a/%2F", "a/b c", "b.\u00fc", ".hidden")
    async with kind(tmp_path) as store:
        assert await store.keys() == []
        for key in keys:
            await store.write(key, key.encode(), if_match=ABSENT)
    async with kind(tmp_path) as store:
        assert await store.keys() == sorted(keys)
        assert await store.keys("a/") == ["a/%2F", "a/b c"]
        for key in keys:
            assert (await store.read(key))[0] == key.encode()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_writer_that_is_killed_leaves_the_old_value_or_the_new(kind, tmp_path):
    opened, place = KINDS[kind]
    command = [sys.executable, "-c", INCREMENT, kind, str(tmp_path / place)]
    async with opened(tmp_path) as store:
        process = await trio.lowlevel.open_process(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )
        with trio.fail_after(PATIENCE):
            while int((await store.read("n"))[0] or 0) < 3:  # noqa: ASYNC110 another process
                await trio.sleep(0.01)
        process.kill()
        await process.wait()
        value, etag = await store.read("n")

        assert 3 <= int(value or 0) <= 50
        await store.write("n", b"0", if_match=etag)


async def test_a_key_that_no_file_can_have_is_refused_with_its_limit(tmp_path):
    async with folder(tmp_path) as store:
        for key in ("", "x" * 241):
            with pytest.raises(InvalidRequest, match="1 to 240 characters"):
                await store.read(key)


async def test_a_file_that_is_no_database_is_refused_by_its_name(tmp_path):
    (tmp_path / "values.db").write_bytes(b"this is no database" * 100)

    with pytest.raises(Unavailable, match=r"values\.db"):
        async with sqlite(tmp_path):
            pytest.fail("it opened")


@attrs.frozen
class Account:
    cents: int = 0


async def test_values_have_a_type_and_a_default(tmp_path):
    async with folder(tmp_path) as store:
        accounts = Values(store, Account, Account())
        await update(accounts, "ann", lambda account: attrs.evolve(account, cents=5))

        assert (await accounts.read("ann"))[0] == Account(5)
        assert (await accounts.read("bob"))[0] == Account()
        assert json.loads((await store.read("ann"))[0] or b"") == {"cents": 5}
        await store.write("ann", b'{"cents": "5"}', if_match=ANY)
        with pytest.raises(ValueError, match="ann: the stored value isn't of type Account"):
            await accounts.read("ann")
