"""The options of a pair have ranges, choices, and their names in a configuration."""

import enum
import math
from functools import partial
from typing import Any

import pytest

from gateway.extensions.hedging.options import HedgingOptions, HedgingRule
from gateway.pairing.options import (
    BacklogTimeToLive,
    EntityRule,
    OnRefusedCredentials,
    OnUnknown,
    OnUnreachable,
    Oversized,
    PairOptions,
    SyphonOptions,
    UnknownEntity,
    WhileSuspect,
)

PAIR = partial(PairOptions, label="east")
RULE = partial(EntityRule, match="orders")
SHORTEST, MOST = 0.001, math.inf

RANGES = [
    (PAIR, "failover_interval", 0.0, 3600.0),
    (RULE, "failover_interval", 0.0, 3600.0),
    (PAIR, "send_timeout", SHORTEST, MOST),
    (PAIR, "attempt_timeout", SHORTEST, MOST),
    (PAIR, "suspect_wait", 0.0, MOST),
    (PAIR, "slow_call_duration", SHORTEST, MOST),
    (PAIR, "slow_call_rate", SHORTEST, 1.0),
    (PAIR, "busy_pause", SHORTEST, MOST),
    (PAIR, "backlog_queues", 1, 1000),
    (PAIR, "backlog_cooldown", SHORTEST, MOST),
    (PAIR, "ping_interval", 1.0, 1800.0),
    (PAIR, "orphaned_after", SHORTEST, MOST),
    (PAIR, "successes_to_return", 1, MOST),
    (PAIR, "max_inflight", 1, MOST),
    (PAIR, "throttle_failover_after", SHORTEST, MOST),
    (HedgingOptions, "hedge_after", SHORTEST, MOST),
    (HedgingRule, "hedge_after", SHORTEST, MOST),
    (HedgingOptions, "hedge_budget", 0.0, 1.0),
    (SyphonOptions, "batch", 1, 1000),
    (SyphonOptions, "attempt_timeout", SHORTEST, MOST),
    (SyphonOptions, "busy_pause", SHORTEST, MOST),
    (SyphonOptions, "gone_grace", 0.0, MOST),
    (SyphonOptions, "rescan", SHORTEST, MOST),
    (SyphonOptions, "stall_after", SHORTEST, MOST),
    (SyphonOptions, "max_drain_rate", SHORTEST, MOST),
    (SyphonOptions, "heartbeat_interval", 1.0, 3600.0),
]


@pytest.mark.parametrize(("make", "name", "least", "most"), RANGES)
def test_an_option_has_a_range(make: Any, name: str, least: float, most: float) -> None:
    for inside in (least, most):
        assert getattr(make(**{name: inside}), name) == inside
    for outside in {least - SHORTEST, most + SHORTEST} - {math.inf}:
        with pytest.raises(ValueError, match=name):
            make(**{name: outside})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (RULE, "failover_interval"),
        (PAIR, "throttle_failover_after"),
        (HedgingOptions, "hedge_after"),
        (HedgingRule, "hedge_after"),
        (SyphonOptions, "max_drain_rate"),
    ],
)
def test_an_option_may_be_left_out(make: Any, name: str) -> None:
    assert getattr(make(), name) is None


def test_an_entity_may_leave_its_primary_and_a_full_one_is_the_callers_business() -> None:
    assert RULE().divert
    assert not PAIR().divert_on_quota


@pytest.mark.parametrize(
    ("switched_off", "seconds"),
    [
        ({}, 2.0),
        ({"slow_call_duration": None}, math.inf),
        ({"slow_call_rate": None}, math.inf),
    ],
)
def test_a_slow_answer_is_a_success_only_where_slowness_is_no_trouble(
    switched_off: dict[str, None], seconds: float
) -> None:
    assert PAIR(**switched_off).slowest_success == seconds


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WhileSuspect, ["divert", "raise"]),
        (OnUnknown, ["divert", "raise"]),
        (OnUnreachable, ["divert", "raise"]),
        (OnRefusedCredentials, ["raise", "divert"]),
        (UnknownEntity, ["divert", "refuse"]),
        (Oversized, ["refuse", "primary-only"]),
        (BacklogTimeToLive, ["deduct", "restart"]),
    ],
)
def test_a_choice_has_the_words_of_the_specification(
    kind: type[enum.Enum], words: list[str]
) -> None:
    assert [each.value for each in kind] == words
