"""`pairgate bench` against a store of this process: figures, and messages that aren't its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app.operations.benching import Latencies, RunFigures
from gateway.commands.bench import code_of
from gateway.domain.errors import EntityNotFound, Unreachable
from tests.command_line import PAIR, pairgate
from tests.stores import make_stores


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    make_stores(file)
    return file


def bench(pair: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = pairgate("bench", "orders", *arguments, "--json", "--config", pair)
    return result.exit_code, json.loads(result.stdout or result.stderr)


def test_a_sent_message_is_received_and_each_step_has_its_latencies(pair: Path) -> None:
    code, told = bench(pair, "--count", "30", "--size", "100", "--in-flight", "5")

    assert (code, told["sent"], told["received"], told["errors"]) == (0, 30, 30, {})
    assert told["target"] == "namespace east"
    assert told["send_rate"] > 0
    assert told["receive_rate"] > 0
    for step in ("send_seconds", "complete_seconds", "send_to_receipt_seconds"):
        figures = told[step]
        assert 0 < figures["p50"] <= figures["p90"] <= figures["p99.9"] <= figures["max"]


def test_messages_of_a_run_that_only_sends_are_received_by_another(pair: Path) -> None:
    sent = bench(pair, "--count", "20", "--mode", "send")
    received = bench(pair, "--count", "20", "--mode", "receive", "--connections", "2")
    left = pairgate("peek", "orders", "--config", pair)

    assert (sent[0], sent[1]["sent"], sent[1]["received"]) == (0, 20, 0)
    assert (received[0], received[1]["sent"], received[1]["received"]) == (0, 0, 20)
    assert received[1]["send_to_receipt_seconds"] is None
    assert left.stdout == ""


def test_messages_of_others_are_left_and_end_the_run(pair: Path) -> None:
    pairgate("send", "orders", "theirs", "--config", pair)

    code, told = bench(pair, "--mode", "receive", "--count", "1")
    left = pairgate("peek", "orders", "--config", pair)

    assert (code, told["exit_code"]) == (2, 2)
    assert "messages that aren't of this command" in told["error"]
    assert "theirs" in left.stdout


def test_people_read_a_table(pair: Path) -> None:
    result = pairgate("bench", "orders", "--count", "5", "--config", pair)

    assert result.exit_code == 0
    assert "5 messages sent to orders, namespace east in " in result.stdout
    assert "5 messages received from orders" in result.stdout
    assert "send to receipt" in result.stdout


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused(pair: Path, name: str) -> None:
    assert pairgate("bench", name, "--config", pair).exit_code == 2


def test_a_percentile_is_at_most_three_percent_too_high() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.record(number / 1000)

    figures = latencies.figures()

    assert figures is not None
    for name, value in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        assert value <= figures[name] <= 1.03 * value
    assert (figures["mean"], figures["max"]) == (pytest.approx(0.5005), 1.0)


@pytest.mark.parametrize(
    ("sent", "errors", "code"),
    [
        (1, [], 0),
        (1, [Unreachable("refused")], 1),
        (0, [Unreachable("refused"), None], 75),
        (0, [EntityNotFound("none")], 1),
        (0, [], 1),
    ],
)
def test_the_exit_code_says_whether_to_try_again(sent: int, errors: list[Any], code: int) -> None:
    figures = RunFigures(sent=sent)
    for error in errors:
        figures.record_error(error)

    assert code_of(figures) == code
