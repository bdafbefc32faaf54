from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.access import (
    Access,
    AccessPolicy,
    Right,
    TokenClaim,
    audience_covers,
    authenticate,
    authorize,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
SENDER = AccessPolicy(
    name="sender",
    keys=("one", "two"),
    rights=frozenset({Right.SEND}),
    entities=("orders", "orders/*"),
)
ROOT = AccessPolicy(name="root", keys=("key",), rights=frozenset({Right.MANAGE}))
POLICIES = {"sender": SENDER, "root": ROOT}


def check(
    *,
    name: str = "sender",
    signed: bool = True,
    expires: int = SECONDS + 60,
    resource: str = "sb://east",
    entity: str | None = "orders",
    right: Right = Right.SEND,
    skew: timedelta = timedelta(0),
) -> None:
    key = "one" if signed else None
    claim = TokenClaim(key_name=name, key=key, expires=expires, resource=resource, skew=skew)
    authorize(
        authenticate(POLICIES, claim, now=NOW),
        claim,
        Access(
            right=right,
            entity=EntityPath(entity) if entity else None,
            path=entity or "$Resources/Queues",
        ),
    )


def test_a_good_claim_passes() -> None:
    check()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "nobody"}, "unknown key name 'nobody'"),
        ({"signed": False}, "signature"),
        ({"expires": SECONDS - 10}, "expired 10 s ago"),
        ({"resource": "sb://east/other"}, "resource 'sb://east/other' doesn't cover 'orders'"),
        ({"entity": "payments"}, "policy 'sender' doesn't cover entity payments"),
        ({"entity": None}, "doesn't cover the namespace"),
        ({"right": Right.LISTEN}, "'Listen' claim.s. are required"),
    ],
)
def test_each_refusal_says_why(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(NotAuthorized, match=text):
        check(**wrong)  # type: ignore[arg-type]


def test_a_clock_may_be_five_minutes_behind() -> None:
    def claim(late: int) -> TokenClaim:
        return TokenClaim(key_name="root", key="key", expires=SECONDS - late, resource="sb://east")

    assert authenticate(POLICIES, claim(300), now=NOW) == [ROOT]
    with pytest.raises(NotAuthorized, match="expired 301 s ago"):
        authenticate(POLICIES, claim(301), now=NOW)


def test_a_claim_that_names_no_key_is_signed_by_none() -> None:
    unsigned = TokenClaim(key_name="root", expires=SECONDS, resource="sb://east")

    with pytest.raises(NotAuthorized, match="signature"):
        authenticate(POLICIES, unsigned, now=NOW)


def test_a_caller_without_a_signature_learns_nothing_of_the_rights() -> None:
    with pytest.raises(NotAuthorized, match="signature"):
        check(signed=False, expires=0, entity="payments", right=Right.MANAGE)


def test_manage_implies_send_and_listen() -> None:
    assert all(ROOT.grants(right) for right in Right)
    assert [right for right in Right if SENDER.grants(right)] == [Right.SEND]


def test_rights_have_the_names_of_service_bus_s_claims() -> None:
    assert [right.value for right in Right] == ["Send", "Listen", "Manage"]


def test_token_is_good_for_the_skew_longer() -> None:
    check(expires=SECONDS - 60, skew=timedelta(seconds=60))
    with pytest.raises(NotAuthorized, match="expired"):
        check(expires=SECONDS - 61, skew=timedelta(seconds=60))


@pytest.mark.parametrize(
    ("entity", "covered"),
    [
        ("orders", True),
        ("ORDERS", True),
        ("orders/eu/late", True),
        ("orders/$DeadLetterQueue", True),
        ("orders2", False),
        ("eu/orders", False),
    ],
)
def test_patterns_of_a_policy(entity: str, covered: bool) -> None:
    assert SENDER.covers(EntityPath(entity)) is covered


def test_sub_queue_goes_with_its_entity() -> None:
    policy = AccessPolicy(
        name="p", keys=("k",), rights=frozenset({Right.LISTEN}), entities=("orders",)
    )

    assert policy.covers(EntityPath("orders/$DeadLetterQueue"))
    assert not policy.covers(EntityPath("orders/eu"))


def test_a_policy_may_be_for_a_sub_queue_or_a_subscription_alone() -> None:
    policy = AccessPolicy(
        name="p",
        keys=("k",),
        rights=frozenset({Right.LISTEN}),
        entities=("orders/$DeadLetterQueue", "news/Subscriptions/s"),
    )

    assert policy.covers(EntityPath("orders/$DeadLetterQueue"))
    assert not policy.covers(EntityPath("orders"))
    assert policy.covers(EntityPath("news/subscriptions/s/$DeadLetterQueue"))
    assert not policy.covers(EntityPath("news/subscriptions/t"))


def test_subscriptions_go_with_their_topic() -> None:
    policy = AccessPolicy(
        name="p", keys=("k",), rights=frozenset({Right.LISTEN}), entities=("eu/orders",)
    )

    assert policy.covers(EntityPath("eu/Orders/Subscriptions/all"))
    assert policy.covers(EntityPath("eu/orders/subscriptions/all/$DeadLetterQueue"))
    assert not policy.covers(EntityPath("eu/orders/subscriptions/all/more"))
    assert not policy.covers(EntityPath("eu/subscriptions/orders"))


def test_a_policy_is_for_all_entities_if_it_says_so_or_names_none() -> None:
    rights = frozenset({Right.MANAGE})
    everything = AccessPolicy(name="root", keys=("key",), rights=rights, entities=("*",))

    assert everything.covers(None)
    assert everything == ROOT


def test_only_who_has_all_entities_has_the_namespace() -> None:
    assert ROOT.covers(None)
    assert not SENDER.covers(None)


@pytest.mark.parametrize(
    ("resource", "path", "covered"),
    [
        ("https://localhost:23443", "/any/thing", True),
        ("sb://east/", "/orders", True),
        ("sb://east/Orders", "/orders/messages", True),
        ("sb://east/orders", "/ORDERS", True),
        ("sb://east/orders/", "/orders", True),
        ("sb://east/Xray", "/xray", True),
        ("sb://east/ord", "/orders", False),
        ("sb://east/orders/eu", "/orders", False),
        ("sb://east/ut%2Fqueue", "/ut/queue/messages", True),
        ("http://a:1:80/q/messages/head?timeout=5", "/q/messages/head", True),
        ("sb://east?u=sb://west/other", "/orders", True),
        ("orders", "/payments", False),
        ("orders.v1/eu", "/payments", False),
        ("localhost", "/orders", True),
        ("East.ServiceBus.windows.net", "/orders", True),
        ("east.servicebus.windows.net/orders", "/orders", True),
        ("127.0.0.1:5671/orders", "/payments", False),
        ("", "/orders", False),
    ],
)
def test_audience(resource: str, path: str, covered: bool) -> None:
    assert audience_covers(resource, path) is covered


segments = st.lists(st.text(st.sampled_from("abAB.-"), min_size=1, max_size=3), max_size=4)


@given(wanted=segments, asked=segments)
def test_audience_is_a_prefix_in_whole_segments(wanted: list[str], asked: list[str]) -> None:
    covered = audience_covers("amqps://h:5671/" + "/".join(wanted), "/" + "/".join(asked))

    assert covered == all(
        i < len(asked) and asked[i].lower() == segment.lower() for i, segment in enumerate(wanted)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": ()},
        {"keys": ("",)},
        {"keys": ("a", "b", "c")},
        {"rights": ()},
        {"name": ""},
        {"entities": ()},
    ],
)
def test_policy_without_sense_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"name": "p", "keys": ("k",), "rights": (Right.SEND,), **wrong}

    with pytest.raises(ValueError, match="must be"):
        AccessPolicy(**fields)  # type: ignore[arg-type]


def test_keys_stay_out_of_repr() -> None:
    signed = TokenClaim(key_name="sender", key="secret", expires=0, resource="sb://east")

    assert "'one'" not in repr(SENDER)
    assert "secret" not in repr(signed)
