"""The identity of a store is the same in all its copies, and after each opening."""

import shutil

import pytest

from gateway.store.embedded.copying import back_up, compact
from gateway.store.embedded.files import StoreDamaged
from gateway.store.embedded.salvage import salvage
from tests.store.embedded.crashes import GOOD_DISK
from tests.store.embedded.migration import MAKERS
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened


async def told(folder, path=None):
    """
    Return the identity of the store in that folder; with `path`, of a copy of that file there.
    """
    if path is not None:
        folder.mkdir()
        shutil.copy(path, folder / "a.db")
    async with embedded(folder) as broker:
        await broker.send(ORDERS, numbered("x"))
        return str(await broker.identity())


async def test_a_store_is_the_same_one_after_a_restart(tmp_path):
    assert await told(tmp_path) == await told(tmp_path)


async def test_copies_of_a_store_are_the_same_namespace(tmp_path):
    first = await told(tmp_path)
    back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    back_up(tmp_path / "copy.db", tmp_path / "again.db", 9, GOOD_DISK)
    salvage(tmp_path / "a.db", tmp_path / "salvaged.db", 10, GOOD_DISK)
    compact(tmp_path / "a.db", GOOD_DISK)

    assert await told(tmp_path) == first
    assert await told(tmp_path / "one", tmp_path / "again.db") == first
    assert await told(tmp_path / "two", tmp_path / "salvaged.db") == first


@pytest.mark.parametrize("version", MAKERS)
async def test_a_store_of_an_earlier_version_gets_an_identity_and_keeps_it(tmp_path, version):
    MAKERS[version](tmp_path / "a.db")
    back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    salvage(tmp_path / "a.db", tmp_path / "salvaged.db", 9, GOOD_DISK)
    first = await told(tmp_path)

    assert first == await told(tmp_path) == "store:0000000000000007"
    assert await told(tmp_path / "one", tmp_path / "copy.db") == first
    assert await told(tmp_path / "two", tmp_path / "salvaged.db") == first


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_damaged_identity_is_noticed(tmp_path, version):
    if version in MAKERS:
        MAKERS[version](tmp_path / "a.db")
    else:
        await told(tmp_path)
    with opened(tmp_path / "a.db") as connection:
        connection.execute(
            "UPDATE store SET " + ("store_id" if version == 3 else "identity") + " = 99"
        )

    with pytest.raises(StoreDamaged):
        await told(tmp_path)
