import apsw
import pytest

from gateway.store.embedded import counters, rows, schema, session_rows, tables, upkeep
from gateway.store.embedded.files import StoreDamaged


def test_a_new_store_keeps_every_promise(tmp_path):
    schema.create(tmp_path / "a.db", 7)
    connection = schema.connect(tmp_path / "a.db")
    promises = {name: connection.pragma(name) for name, _, _ in schema.PRAGMAS}
    pages = connection.pragma("page_size"), connection.pragma("auto_vacuum")
    connection.close()

    assert promises["synchronous"] == 2
    assert promises["journal_mode"] == "wal"
    assert promises == {name: expected for name, _, expected in schema.PRAGMAS}
    assert pages == (4096, 2)


def test_a_setting_that_sqlite_does_not_take_is_refused(tmp_path):
    schema.create(tmp_path / "a.db", 7)

    with pytest.raises(StoreDamaged, match="synchronous"):
        schema.connect(tmp_path / "a.db", pragmas=(("synchronous", "OFF", 2),))


def test_a_store_of_a_later_version_is_refused(tmp_path):
    schema.create(tmp_path / "a.db", 7)
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.execute(f"PRAGMA user_version = {tables.VERSION + 1}")
    connection.close()

    with pytest.raises(StoreDamaged, match="version"):
        schema.connect(tmp_path / "a.db")


def test_the_remains_of_a_crashed_creation_are_no_hindrance(tmp_path):
    (tmp_path / "a.db.new").write_bytes(b"half")
    schema.create(tmp_path / "a.db", 7)
    connection = schema.connect(tmp_path / "a.db")

    assert connection.execute("SELECT store_id FROM store").get == 7
    connection.close()


STATEMENTS = {
    f"{module.__name__}.{name}": value
    for module in (rows, session_rows, counters, upkeep)
    for name, value in vars(module).items()
    if isinstance(value, str) and name.startswith("_") and " WHERE " in " ".join(value.split())
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_question_reads_all_messages(tmp_path, name):
    schema.create(tmp_path / "a.db", 7)
    connection = schema.connect(tmp_path / "a.db")
    statement = STATEMENTS[name]
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?"))
    steps = [step[3] for step in plan]
    connection.close()

    assert steps
    assert not [step for step in steps if "SCAN" in step or "TEMP B-TREE" in step]


def test_the_messages_of_a_session_are_found_without_those_of_others(tmp_path):
    schema.create(tmp_path / "a.db", 7)
    connection = schema.connect(tmp_path / "a.db")
    plan = connection.execute(f"EXPLAIN QUERY PLAN {rows._IN_SESSION}", (1,) * 4).fetchall()
    connection.close()

    assert "message_session (queue=? AND session=? AND sequence>?)" in plan[0][3]
