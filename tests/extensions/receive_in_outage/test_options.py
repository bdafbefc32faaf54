"""A start and `check` refuse each queue that can't be received from in an outage."""

import json
from pathlib import Path
from typing import Final

import pytest

from gateway.config.errors import ConfigError
from gateway.extensions.receive_in_outage.options import overlap
from tests.command_line import PAIR, pairgate
from tests.config.texts import config, problems
from tests.stores import make_stores

SESSIONS: Final = '{ "Name": "orders", "Properties": { "RequiresSession": true } }'


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ("receive_in_outage = ['a', 'A']", "[1]: 'A' is given twice"),
        ("receive_in_outage = ['a/*', 'A/*']", "[1]: 'A/*' is given twice"),
        ("receive_in_outage = ['']", "[0]: entity name: 1 to 260 characters expected, got 0"),
        (f"receive_in_outage = ['{'a' * 240}']", "[0]: entity name: 1 to 260 characters expected"),
        ("receive_in_outage = ['t/subscriptions/s']", "[0]: a queue expected, not a sub-queue"),
        ("receive_in_outage = ['a/$DeadLetterQueue']", "[0]: a queue expected, not a sub-queue"),
        ("receive_in_outage = ['east/x-servicebus-transfer/0']", "[0]: a queue expected"),
        (
            "receive_in_outage = ['orders']\nordered = ['ord*']",
            "[0]: 'orders' is in pairing.ordered, and can't be received from the backlog as well",
        ),
        (
            "receive_in_outage = ['*ers']\nordered = ['ord*']",
            "[0]: '*ers' is in pairing.ordered, and can't be received from the backlog as well",
        ),
        (
            "receive_in_outage = ['*']\n[[sharding]]\nqueue = 'orders'\nshards = 2",
            "[0]: '*' is in sharding[0].queue, and can't be received from the backlog",
        ),
        (
            "receive_in_outage = ['orders']\n[[sharding]]\nqueue = 'orders'\nshards = 2",
            "[0]: 'orders' is in sharding[0].queue, and can't be received from the backlog",
        ),
    ],
)
def test_a_queue_that_cant_be_received_from_in_an_outage_is_refused(
    addition: str, problem: str
) -> None:
    found = problems(f"{PAIR}\n{addition}")

    assert any(f"pairing.receive_in_outage{problem}" in each for each in found), found


@pytest.mark.parametrize(
    ("planned", "west", "words"),
    [
        (SESSIONS, "rabbitmq://user@host", "orders requires sessions, which the secondary west"),
        (SESSIONS, "encrypted", "orders requires sessions, whose ids the backlog"),
        (None, "embedded:west.db", "orders is a topic"),
    ],
    ids=["no sessions", "encrypted", "topic"],
)
def test_a_start_refuses_a_queue_that_the_configuration_plans_otherwise(
    planned: str | None, west: str, words: str, tmp_path: Path
) -> None:
    queues, topics = ("", '{ "Name": "orders" }') if planned is None else (planned, "")
    (tmp_path / "Config.json").write_text(
        f'{{ "UserConfig": {{ "Namespaces": [{{ "Name": "n", "Queues": [{queues}],'
        f' "Topics": [{topics}] }}] }} }}'
    )
    east = '[namespaces.east]\nentities = "Config.json"\n'
    text = PAIR.replace("[namespaces.east]\n", east) + 'receive_in_outage = ["orders"]\n'
    if west == "encrypted":
        text += "encrypt = true\n"
    else:
        text = text.replace("embedded:west.db", west)

    with pytest.raises(ConfigError, match=words):
        config(text, tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("pay/*", "pay/a", True),
        ("pay/*", "pay", False),
        ("a*", "*b", True),
        ("a*c", "b*", False),
        ("a?", "a", False),
        ("a?c", "*bc", True),
        ("*a*", "b*b", True),
        ("[ab]x", "bx", True),
        ("[ab]x", "by", False),
        ("", "*", True),
    ],
)
def test_patterns_overlap_if_a_name_matches_both(one: str, other: str, common: bool) -> None:
    assert overlap(one, other) is common
    assert overlap(other, one) is common


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        ('["pay/*"]', 1),
        ('["pay/a", "pay/jobs"]', 0),  # a store has made them when it was opened
    ],
    ids=["pattern", "names"],
)
def test_provision_makes_the_queue_of_each_entity(names: str, plain: int, tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(f"{PAIR}receive_in_outage = {names}\n")
    make_stores(file)
    for name, options in (("pay/a", []), ("pay/jobs", ["--sessions"]), ("other", [])):
        assert pairgate("create", "queue", name, *options, "--config", file).exit_code == 0

    made = pairgate("provision", "--config", file)

    assert made.output.count("/x-servicebus-transfer-of/pay/a") == plain
    assert made.output.count("/x-servicebus-transfer-of/") == plain
    assert "/x-servicebus-transfer-of-sessions/pay/jobs" in made.output
    assert made.output.count("/x-servicebus-transfer-of-sessions/") == 1


def test_check_notes_a_match_that_cant_be_received_from(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(f'{PAIR}encrypt = true\nreceive_in_outage = ["pay/*"]\n')
    make_stores(file)
    made = pairgate("create", "queue", "pay/jobs", "--sessions", "--config", file)
    assert made.exit_code == 0

    checked = pairgate("check", "--config", file, "--json")

    findings = json.loads(checked.stdout)["findings"]
    [noted] = [each for each in findings if each["subject"] == "queue pay/jobs"]
    assert (noted["grade"], "requires sessions" in noted["text"]) == ("note", True)


def test_check_refuses_what_the_primary_describes_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(f'{PAIR}encrypt = true\nreceive_in_outage = ["orders", "jobs", "news"]\n')
    make_stores(file)
    for kind, name, options in (("queue", "jobs", ["--sessions"]), ("topic", "news", [])):
        assert pairgate("create", kind, name, *options, "--config", file).exit_code == 0

    checked = pairgate("check", "--config", file, "--json")

    findings = json.loads(checked.stdout)["findings"]
    bad = {
        each["subject"]: each["text"]
        for each in findings
        if each["grade"] == "bad" and each["subject"].startswith("queue")
    }
    assert bad.keys() == {"queue jobs", "queue news"}
    assert "jobs requires sessions" in bad["queue jobs"]
    assert "news is a topic" in bad["queue news"]
