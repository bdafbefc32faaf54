"""`pairgate receive` shows all received messages, and completes none that it can't show."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import PAIR, PATIENTLY, pairgate
from tests.stores import make_stores

pytestmark = pytest.mark.slow

BINARY = b"\xff\x00\xfe"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    make_stores(file)
    return file


def waiting(pair: Path, *options: str) -> list[dict[str, Any]]:
    seen = pairgate("peek", "orders", "--json", "--config", pair, *options)
    return [json.loads(line) for line in seen.stdout.splitlines()]


def test_a_binary_body_is_printed_in_base64_before_it_is_completed(pair: Path) -> None:
    pairgate("send", "orders", "--config", pair, stdin=BINARY)

    taken = pairgate("receive", "orders", "--config", pair, *PATIENTLY)

    assert taken.exit_code == 0
    assert f"base64: {base64.b64encode(BINARY).decode()}" in taken.stdout
    assert waiting(pair) == []


def test_a_body_is_written_to_a_file(pair: Path, tmp_path: Path) -> None:
    pairgate("send", "orders", "--config", pair, stdin=BINARY)
    file = tmp_path / "body"

    taken = pairgate("receive", "orders", "--config", pair, "--output", file, *PATIENTLY)

    assert (taken.exit_code, file.read_bytes()) == (0, BINARY)
    assert str(file) in taken.stdout
    assert waiting(pair) == []


def test_bodies_are_written_into_a_folder(pair: Path, tmp_path: Path) -> None:
    for body in (b"one", BINARY):
        pairgate("send", "orders", "--config", pair, stdin=body)
    folder = tmp_path / "bodies"
    folder.mkdir()

    taken = pairgate(
        "receive", "orders", "--json", "--config", pair, "--count", "5", "--output", folder
    )

    files = [json.loads(line)["body_file"] for line in taken.stdout.splitlines()]
    assert [Path(file).read_bytes() for file in files] == [b"one", BINARY]


def test_a_message_whose_body_cant_be_written_is_given_back(pair: Path, tmp_path: Path) -> None:
    pairgate("send", "orders", "kept", "--config", pair)
    file = tmp_path / "body"
    file.write_bytes(b"somebody's")

    taken = pairgate("receive", "orders", "--config", pair, "--output", file, *PATIENTLY)

    assert taken.exit_code == 2
    assert "File exists" in taken.stderr
    assert file.read_bytes() == b"somebody's"
    assert [each["body"] for each in waiting(pair)] == ["kept"]


def test_people_see_session_delivery_count_dates_and_content_type(pair: Path) -> None:
    options = ["--session", "cart 7", "--content-type", "text/plain", "--ttl", "5m"]
    pairgate("send", "orders", "hello", "--config", pair, *options)

    taken = pairgate("receive", "orders", "--config", pair, *PATIENTLY)

    for text in ("session cart 7", "delivery 1", "enqueued 20", "expires 20", "text/plain"):
        assert text in taken.stdout


@pytest.mark.parametrize(("option", "deliveries"), [("--leave", 1), ("--abandon", 2)])
def test_messages_are_left_or_abandoned_instead_of_completed(
    option: str, deliveries: int, pair: Path
) -> None:
    for body in ("one", "two"):
        pairgate("send", "orders", body, "--config", pair)

    taken = pairgate("receive", "orders", "--config", pair, "--count", "2", option, *PATIENTLY)
    again = pairgate("receive", "orders", "--json", "--config", pair, "--count", "2", *PATIENTLY)

    assert taken.exit_code == 0
    assert (taken.stdout.count("one"), taken.stdout.count("two")) == (1, 1)
    found = [json.loads(line) for line in again.stdout.splitlines()]
    assert [each["body"] for each in found] == ["one", "two"]
    assert [each["delivery_count"] for each in found] == [deliveries] * 2


def test_a_message_is_dead_lettered_and_shown_with_its_reason(pair: Path) -> None:
    pairgate("send", "orders", "bad", "--config", pair)

    taken = pairgate(
        "receive", "orders", "--config", pair, "--dead-letter", "NoCustomer", *PATIENTLY
    )
    left = pairgate("receive", "orders", "--config", pair, "--dead-letters", "--leave", *PATIENTLY)

    assert (taken.exit_code, waiting(pair)) == (0, [])
    assert "dead-lettered NoCustomer" in left.stdout
    [dead] = waiting(pair, "--dead-letters")
    assert dead["dead_letter_reason"] == "NoCustomer"


def test_one_session_is_received_from_where_sessions_are_required(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    entities = {
        "UserConfig": {
            "Namespaces": [
                {
                    "Name": "sb",
                    "Queues": [{"Name": "carts", "Properties": {"RequiresSession": True}}],
                }
            ]
        }
    }
    (tmp_path / "Config.json").write_text(json.dumps(entities))
    file.write_text('[namespaces.here]\nurl = "embedded:here.db"\nentities = "Config.json"\n')
    make_stores(file)
    for session in ("a", "b"):
        pairgate("send", "carts", f"of {session}", "--session", session, "--config", file)

    taken = pairgate("receive", "carts", "--session", "b", "--json", "--config", file, *PATIENTLY)

    assert json.loads(taken.stdout)["body"] == "of b"


def test_ways_to_settle_exclude_each_other(pair: Path) -> None:
    taken = pairgate("receive", "orders", "--config", pair, "--leave", "--abandon")

    assert taken.exit_code == 2
    assert "--leave, --abandon and --dead-letter" in taken.stderr


def test_a_send_past_the_gateway_says_so_and_where_it_went(pair: Path) -> None:
    people = pairgate("send", "orders", "x", "--config", pair)
    machines = pairgate("send", "orders", "x", "--json", "--config", pair)
    wanted = pairgate("send", "orders", "x", "--namespace", "east", "--config", pair)
    failed = pairgate("send", "nope", "x", "--config", pair)

    assert "no gateway answers" in people.stderr
    assert "directly to namespace east" in people.stderr
    told = json.loads(machines.stdout)
    assert (told["through_gateway"], told["namespace"]) == (False, "east")
    assert wanted.stderr == ""
    assert "directly to namespace east, because no gateway answers" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("send", "nope", "x"), 1, "there is no entity nope"),
        (("send", "orders", "x", "--namespace", "north"), 2, "there is no namespace 'north'"),
        (("status",), 2, "no `admin` endpoint"),
        (("serve",), 2, "add [[endpoints]]"),
        (("send", "orders", "x", "--property", "a"), 2, "NAME=VALUE or NAME:=JSON expected"),
        (("receive", "orders", "--no-such-option"), 2, "No such option"),
        (("receive", "orders", "--leave", "--abandon"), 2, "--leave, --abandon"),
    ],
)
def test_errors_are_json_where_json_was_asked_for(
    arguments: tuple[str, ...], code: int, text: str, pair: Path
) -> None:
    result = pairgate(*arguments, "--json", "--config", pair)

    assert (result.exit_code, result.stdout) == (code, "")
    told = json.loads(result.stderr.splitlines()[-1])
    assert told["exit_code"] == code
    assert text in told["error"]


def test_a_listener_of_a_missing_queue_names_the_cure_and_ends(pair: Path) -> None:
    result = pairgate("listen", "nope", "--exec", "true", "--config", pair)

    assert result.exit_code == 1
    assert "queue nope is missing" in result.stderr
    assert "name it in queues = [...] of [namespaces.east]" in result.stderr
    assert "--wait-for-queue" in result.stderr


def test_a_command_that_isnt_there_is_said_before_anything_is_received(pair: Path) -> None:
    pairgate("send", "orders", "kept", "--config", pair)

    result = pairgate("listen", "orders", "--exec", "nosuchcmd --fast", "--config", pair)

    assert result.exit_code == 2
    assert "command 'nosuchcmd' not found" in result.stderr
    assert [each["delivery_count"] for each in waiting(pair)] in ([0], [1])
