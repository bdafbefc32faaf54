"""Whether AMQP can be served is known without importing its engine."""

from gateway.wire.amqp import options
from gateway.wire.amqp.options import why_no_engine


def test_nothing_is_missing_where_the_engine_is_installed():
    assert why_no_engine() is None


def test_without_the_engine_the_answer_says_what_to_install(monkeypatch):
    monkeypatch.setattr(options, "find_spec", lambda name: None)

    answer = why_no_engine()

    assert "gcc and python3-dev" in answer
    assert "pairgate[amqp]" in answer
