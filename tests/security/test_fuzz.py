"""Requests with values at the ends of their types do no harm. `make fuzz` tries more of them."""

import pytest
from hypothesis import given, settings

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InternalError
from gateway.domain.topics.filters import Rule
from gateway.store.embedded.entities import EntityRows
from tests.security.fuzz import SETTINGS, TOPIC, Call, Direct, Http, conversations, entry, run


@pytest.mark.slow
@settings(SETTINGS, max_examples=60, derandomize=True)
@given(conversations)
def test_no_value_ends_a_store_or_is_answered_with_an_error_of_ours(asked: list[Call]) -> None:
    run(asked)


def test_a_bug_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    put_rule = EntityRows.put_rule

    def fail(rows: EntityRows, subscription: EntityPath, rule: Rule) -> None:
        if rule.name == "r":
            raise TypeError("a bug of this test")
        put_rule(rows, subscription, rule)

    body = entry("RuleDescription", "")
    over_http = Http("rest", "PUT", "/news/Subscriptions/all/Rules/r?api-version=2021-05", (), body)
    run([over_http])
    monkeypatch.setattr(EntityRows, "put_rule", fail)
    for call, error in (
        (over_http, AssertionError),
        (Direct("create_rule", (TOPIC, "all", Rule(name="r"))), InternalError),
    ):
        with pytest.raises(ExceptionGroup) as found:
            run([call])
        assert found.group_contains(error)
