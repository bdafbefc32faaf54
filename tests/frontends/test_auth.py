import math
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import pytest

from gateway.domain.access import Access, AccessPolicy, Refusal, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized
from gateway.frontends.auth import EMULATOR_POLICY, MAX_KEPT, Authorizer
from gateway.wire.servicebus.sas import sign_sas
from tests.harness.retained import entries

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SOON = int(NOW.timestamp()) + 300
URI = "http://localhost:8080/orders"
SENDER = AccessPolicy(name="sender", keys=("primary", "secondary"), rights=frozenset({Right.SEND}))
TO_SEND = Access(right=Right.SEND, entity=EntityPath("orders"), path="/orders/messages")
TO_LISTEN = Access(right=Right.LISTEN, entity=EntityPath("orders"), path="/orders/messages/head")
EMULATOR_TOKEN = sign_sas(URI, "RootManageSharedAccessKey", "SAS_KEY_VALUE", SOON)


def check(authorizer: Authorizer, token: str | None, access: Access) -> None:
    authorizer.check(authorizer.claim(token), access)


def authorizer(*policies: AccessPolicy, accepts_well_known_key: bool = True) -> Authorizer:
    return Authorizer(
        policies, wall_clock=lambda: NOW, accepts_well_known_key=accepts_well_known_key
    )


@pytest.mark.parametrize("key", ["primary", "secondary"])
def test_either_key_is_good(key: str) -> None:
    check(authorizer(SENDER), sign_sas(URI, "sender", key, SOON), TO_SEND)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (None, "no token"),
        ("", "scheme"),
        ("Bearer é", "ASCII"),
        (sign_sas(URI, "sender", "guess", SOON), "signature"),
        (sign_sas(URI, "nobody", "nobody", SOON), "unknown key name"),
        (sign_sas(URI, "sender", "primary", SOON - 601), "expired"),
        (sign_sas(URI + "2", "sender", "primary", SOON), "doesn't cover"),
        (EMULATOR_TOKEN, "unknown key name"),
    ],
)
def test_wrong_token_is_refused(token: str | None, text: str) -> None:
    with pytest.raises(NotAuthorized, match=text):
        check(authorizer(SENDER), token, TO_SEND)


def test_right_that_the_policy_lacks_is_refused() -> None:
    with pytest.raises(NotAuthorized, match="'Listen' claim"):
        check(authorizer(SENDER), sign_sas(URI, "sender", "primary", SOON), TO_LISTEN)


def test_emulators_key_is_good_on_loopback_without_policies() -> None:
    check(authorizer(), EMULATOR_TOKEN, TO_LISTEN)


def test_emulators_key_is_no_good_elsewhere() -> None:
    with pytest.raises(NotAuthorized):
        check(authorizer(accepts_well_known_key=False), EMULATOR_TOKEN, TO_LISTEN)


def test_claim_is_judged_at_each_use() -> None:
    now = NOW
    authorizer = Authorizer([SENDER], wall_clock=lambda: now)
    claim = authorizer.claim(sign_sas(URI, "sender", "primary", SOON))
    authorizer.check(claim, TO_SEND)

    now += timedelta(hours=1)

    with pytest.raises(NotAuthorized, match="expired"):
        authorizer.check(claim, TO_SEND)


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="same name"):
        authorizer(SENDER, EMULATOR_POLICY, SENDER)


def test_token_that_was_good_before_expires() -> None:
    now = NOW
    authorizer = Authorizer([SENDER], wall_clock=lambda: now)
    token = sign_sas(URI, "sender", "primary", SOON)
    authorizer.claim(token)

    now += timedelta(hours=1)

    with pytest.raises(NotAuthorized, match="expired"):
        authorizer.claim(token)


def test_token_that_resembles_a_good_one_is_no_good() -> None:
    sender = authorizer(SENDER)
    token = sign_sas(URI, "sender", "primary", SOON)
    sender.claim(token)

    with pytest.raises(NotAuthorized, match="signature"):
        sender.claim(token.replace(f"se={SOON}", f"se={SOON + 1}"))


def test_a_key_can_be_changed_while_clients_use_it() -> None:
    sender = authorizer(attrs.evolve(SENDER, keys=("old",)))
    old, new = (sign_sas(URI, "sender", key, SOON) for key in ("old", "new"))
    check(sender, old, TO_SEND)

    sender.replace([attrs.evolve(SENDER, keys=("new", "old"))])
    check(sender, old, TO_SEND)
    check(sender, new, TO_SEND)
    sender.replace([attrs.evolve(SENDER, keys=("new",))])

    check(sender, new, TO_SEND)
    with pytest.raises(NotAuthorized, match="signature"):
        sender.claim(old)


def test_policies_that_clash_replace_nothing() -> None:
    sender = authorizer(SENDER)

    with pytest.raises(ValueError, match="same name"):
        sender.replace([EMULATOR_POLICY, EMULATOR_POLICY])

    check(sender, sign_sas(URI, "sender", "primary", SOON), TO_SEND)


@pytest.mark.parametrize(("accepted", "refused"), [(True, False), (False, True)])
def test_without_policies_the_well_known_key_counts_where_it_is_accepted(
    accepted: bool, refused: bool
) -> None:
    sender = authorizer(SENDER, accepts_well_known_key=accepted)

    sender.replace([])

    with pytest.raises(NotAuthorized) if refused else nullcontext():
        check(sender, EMULATOR_TOKEN, TO_SEND)


def test_many_tokens_take_no_more_memory_than_a_thousand() -> None:
    sender = authorizer(SENDER)
    empty = entries(sender)

    for later in range(MAX_KEPT + 10):
        sender.claim(sign_sas(URI, "sender", "primary", SOON + later))

    assert entries(sender) <= empty + MAX_KEPT


def test_a_key_is_a_claim_to_all_that_its_policy_covers() -> None:
    narrow = attrs.evolve(SENDER, entities=("orders",))
    checker = authorizer(narrow)

    claim = checker.claim_by_key("sender", "secondary")

    checker.check(claim, TO_SEND)
    assert checker.seconds_left(claim) == math.inf
    with pytest.raises(NotAuthorized):
        checker.check(claim, TO_LISTEN)
    with pytest.raises(NotAuthorized):
        checker.check(claim, attrs.evolve(TO_SEND, entity=EntityPath("invoices")))


@pytest.mark.parametrize(
    ("name", "key"),
    [("sender", "wrong"), ("nobody", "primary"), ("nobody", "nobody"), ("sender", ""), ("", "é")],
)
def test_a_wrong_key_is_no_claim(name: str, key: str) -> None:
    with pytest.raises(NotAuthorized):
        authorizer(SENDER).claim_by_key(name, key)


def test_a_claim_lasts_as_long_as_its_token_and_the_skew() -> None:
    checker = authorizer(SENDER)

    claim = checker.claim(sign_sas(URI, "sender", "primary", SOON))

    assert checker.seconds_left(claim) == 300 + 300


def test_a_subscriber_is_told_of_new_policies() -> None:
    checker, told = authorizer(SENDER), []
    note = partial(told.append, 1)

    checker.subscribe(note)
    checker.replace([SENDER])
    checker.unsubscribe(note)
    checker.replace([SENDER])

    assert told == [1]


@pytest.mark.parametrize(
    ("token", "refusal"),
    [
        (None, ("", Refusal.MISSING)),
        ("Bearer x", ("", Refusal.MALFORMED)),
        (sign_sas(URI, "sender", "guess", SOON), ("sender", Refusal.WRONG_KEY)),
        (sign_sas(URI, "former", "primary", SOON), ("former", Refusal.UNKNOWN_NAME)),
        (sign_sas(URI, "primary", "sender", SOON), ("", Refusal.UNKNOWN_NAME)),
        (sign_sas(URI, "sender", "primary", SOON - 601), ("sender", Refusal.EXPIRED)),
        (sign_sas(URI + "2", "sender", "primary", SOON), ("sender", Refusal.NOT_ALLOWED)),
        (sign_sas(URI, "sender", "primary", SOON), None),
    ],
)
def test_refused_credentials_are_told_by_name_and_reason_and_never_a_key(
    token: str | None, refusal: tuple[str, Refusal] | None
) -> None:
    told: list[tuple[str, Refusal]] = []
    guard = Authorizer(
        [SENDER],
        wall_clock=lambda: NOW,
        on_refused=lambda name, why: told.append((name, why)),
    )

    with suppress(NotAuthorized):
        guard.require(guard.claim(token), TO_SEND)

    assert told == ([] if refusal is None else [refusal])
