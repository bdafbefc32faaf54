"""The exit code and the output agree with the verdict."""

import json

import pytest

from gateway.checker.operations import Acked, AuditBegan, AuditFailed, Invoked, QueueRead
from gateway.checker.verdict import judge
from gateway.demo import screen
from gateway.demo.machines import MachineFailed
from gateway.demo.story import Result

SENT = [
    Invoked(at=0.0, message_id="m1", entity="orders", fingerprint="f"),
    Acked(at=1.0, message_id="m1"),
    AuditBegan(at=2.0, queues=frozenset({"orders"})),
]
LOST = judge([*SENT, QueueRead(at=3.0, queue="orders")])
UNREAD = judge([*SENT, AuditFailed(at=3.0, queue="orders", reason="gone [red]")])
GOOD = judge([SENT[2], QueueRead(at=3.0, queue="orders")])


def result(verdict):
    figures = dict.fromkeys(
        ("sent", "acknowledged", "diverted", "syphoned", "received", "lost", "duplicates"), 1
    )
    return Result(**figures, errors=0, longest_stall=0.1, outage=6.0, verdict=verdict)


@pytest.fixture
def play(monkeypatch):
    """Let the story end with that result, or that error."""

    def play(end, **options):
        async def run(_story):
            if isinstance(end, Exception):
                raise ExceptionGroup("outer", [ExceptionGroup("inner", [end])])
            return end

        monkeypatch.setattr(screen.Story, "run", run)
        return screen.main(**options)

    return play


def test_a_good_run_is_0_and_prints_its_figures(play, capsys):
    code = play(result(GOOD), as_json=True)

    figures = json.loads(capsys.readouterr().out)
    assert code == 0
    assert figures["passed"] is True
    assert (figures["sent"], figures["findings"], figures["undecided"]) == (1, [], [])


def test_a_lost_message_is_1_and_named(play, capsys):
    code = play(result(LOST))

    shown = capsys.readouterr().out
    assert code == 1
    assert "m1: accepted, and nowhere" in shown
    assert "nothing acknowledged was lost" not in shown


def test_an_undecided_run_ends_with_1(play, capsys):
    code = play(result(UNREAD), as_json=True)

    assert code == 1
    assert json.loads(capsys.readouterr().out)["undecided"]


def test_text_from_outside_is_shown_as_it_is(play, capsys):
    play(result(UNREAD))

    assert "gone [red]" in " ".join(capsys.readouterr().out.split())


def test_a_machine_that_does_not_start_is_named(play, capsys):
    code = play(MachineFailed("primary doesn't listen: the disk is full"))

    assert code == 1
    assert "the disk is full" in capsys.readouterr().out
