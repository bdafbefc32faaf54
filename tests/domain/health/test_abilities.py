"""The abilities of a namespace, judged by its last answers."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.domain.errors import (
    BrokerError,
    Busy,
    CredentialRefused,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NoAnswer,
    NotAuthorized,
    NoToken,
    OutcomeUnknown,
    QuotaExceeded,
    StorageFull,
    Unavailable,
    Unreachable,
    Untrusted,
)
from gateway.domain.health.abilities import (
    Abilities,
    Ability,
    AbilityState,
    AbilityStatus,
    Rights,
    remedy,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEND, RECEIVE, MANAGE, REACH = Ability.SEND, Ability.RECEIVE, Ability.MANAGE, Ability.REACH
YES, NO, UNKNOWN = AbilityState.YES, AbilityState.NO, AbilityState.UNKNOWN


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def states(abilities: Abilities, seconds: float) -> dict[str, AbilityState]:
    """Return the states of the known abilities, by name."""
    told = abilities.statuses(at(seconds)).items()
    return {name: one.state for name, one in told if one.state is not UNKNOWN}


def of(abilities: Abilities, ability: Ability, seconds: float) -> AbilityStatus:
    return abilities.statuses(at(seconds))[ability.value]


def test_nothing_is_known_before_anything_happened() -> None:
    assert dict(Abilities().statuses(NOON)) == {each.value: AbilityStatus() for each in Ability}


@pytest.mark.parametrize("error", [NoToken("down"), CredentialRefused("AADSTS7000215")])
def test_without_an_access_token_nothing_is_known_of_the_namespace_itself(
    error: BrokerError,
) -> None:
    abilities = Abilities(rights=Rights.SERVICE_BUS_ROLES).worked(SEND, at(0))

    failed = abilities.failed(SEND, error, at(1))

    assert states(failed, 2) == {"send": NO, "reach": YES}
    assert states(Abilities().failed(SEND, error, at(1)), 2) == {"send": NO}
    assert of(failed, SEND, 2).error == str(error)
    assert "identity provider" in (of(failed, SEND, 2).remedy or "")


@pytest.mark.parametrize(
    ("rights", "ability", "role"),
    [
        (Rights.SERVICE_BUS_ROLES, SEND, "Azure Service Bus Data Sender"),
        (Rights.SERVICE_BUS_ROLES, REACH, "Azure Service Bus Data Receiver"),
        (Rights.STORAGE_ROLES, MANAGE, "Storage Queue Data Contributor"),
    ],
)
def test_an_identity_that_may_not_is_given_a_role(
    rights: Rights, ability: Ability, role: str
) -> None:
    assert role in remedy(ability, NotAuthorized("no"), rights)


@pytest.mark.parametrize("ability", [SEND, RECEIVE, MANAGE])
def test_a_working_ability_says_so_and_that_the_namespace_is_reached_and_nothing_else(
    ability: Ability,
) -> None:
    assert states(Abilities().worked(ability, at(0)), 1) == {ability.value: YES, "reach": YES}


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (Unreachable("refused"), {"send": NO, "reach": NO}),
        (NoAnswer("silence"), {"send": NO, "reach": NO}),
        (Untrusted("a stranger"), {"send": NO, "reach": NO}),
        (Unavailable("503"), {"send": NO}),
        (StorageFull("507"), {"send": NO}),
        (OutcomeUnknown("reset"), {"send": NO}),
        (NotAuthorized("401"), {"send": NO, "reach": YES}),
        (Busy(), {"reach": YES}),
        (EntityNotFound("no orders"), {"reach": YES}),
        (QuotaExceeded("full"), {"reach": YES}),
        (InvalidRequest("said here"), {}),
        (MessageTooLarge("said here"), {}),
    ],
)
def test_an_error_says_what_it_is_evidence_of(
    error: BrokerError, known: dict[str, AbilityState]
) -> None:
    assert states(Abilities().failed(SEND, error, at(0)), 1) == known


def test_a_namespace_that_tells_of_a_missing_entity_can_be_managed() -> None:
    found = Abilities().failed(MANAGE, EntityNotFound("no orders"), at(0))

    assert states(found, 1) == {"manage": YES, "reach": YES}


def test_a_state_lasts_since_the_first_evidence_of_it() -> None:
    worked = Abilities().worked(SEND, at(0)).worked(SEND, at(60))
    failed = worked.failed(SEND, Unreachable("1"), at(70)).failed(SEND, Unreachable("2"), at(80))

    assert of(worked, SEND, 61) == AbilityStatus(state=YES, since=at(0), seen=at(60))
    assert of(failed, SEND, 81) == AbilityStatus(
        state=NO,
        since=at(70),
        seen=at(80),
        error="2",
        failed=at(80),
        remedy=remedy(SEND, Unreachable("2")),
    )


def test_the_last_error_is_told_also_when_it_is_over() -> None:
    back = Abilities().failed(SEND, Unavailable("503"), at(0)).worked(SEND, at(10))

    assert of(back, SEND, 11).state is YES
    assert (of(back, SEND, 11).error, of(back, SEND, 11).failed) == ("503", at(0))


def test_a_failure_just_after_a_success_is_one_entitys() -> None:
    worked = Abilities().worked(SEND, at(0))

    assert of(worked.failed(SEND, NoAnswer("hangs"), at(1.9)), SEND, 2).state is YES
    assert of(worked.failed(SEND, NoAnswer("hangs"), at(2)), SEND, 2).state is NO
    assert of(worked.failed(SEND, Unreachable("refused"), at(0.1)), SEND, 2).state is NO


def test_old_evidence_says_nothing_of_now() -> None:
    worked = Abilities().worked(SEND, at(0))
    failed = Abilities().failed(SEND, Unreachable("refused"), at(0))

    for abilities in (worked, failed):
        assert of(abilities, SEND, 90).state is not UNKNOWN
        assert of(abilities, SEND, 90.1).state is UNKNOWN
        assert of(abilities, SEND, 90.1).since == at(0)
    assert of(worked.worked(SEND, at(200)), SEND, 201).since == at(200)


def test_an_ability_that_worked_before_the_namespace_became_unreachable_is_unknown() -> None:
    worked = Abilities().worked(RECEIVE, at(0)).worked(MANAGE, at(8))
    lost = worked.failed(SEND, Unreachable("refused"), at(10))

    assert states(lost, 11) == {"send": NO, "reach": NO}
    assert of(lost, RECEIVE, 11).since == at(10)


def test_a_management_that_cant_be_reached_is_elsewhere_while_messages_pass() -> None:
    passing = Abilities().worked(SEND, at(0))

    assert states(passing.failed(MANAGE, Unreachable("refused"), at(10)), 11) == {
        "send": YES,
        "manage": NO,
        "reach": YES,
    }
    assert states(passing.failed(MANAGE, Unreachable("refused"), at(100)), 101) == {
        "manage": NO,
        "reach": NO,
    }


def test_a_receiver_that_waits_shows_that_it_can_receive() -> None:
    assert states(Abilities().waits(at(0), at(10)), 11) == {"receive": YES}


def test_a_wait_proves_nothing_after_an_error_or_while_the_namespace_is_unreachable() -> None:
    failing = Abilities().failed(RECEIVE, Unavailable("503"), at(5))
    lost = Abilities().failed(SEND, NoAnswer("silence"), at(5))

    assert failing.waits(at(0), at(10)) == failing
    assert lost.waits(at(0), at(10)) == lost


@pytest.mark.parametrize(
    ("ability", "word", "permission", "allowed"),
    [
        (SEND, "Send", "write", "add (a)"),
        (RECEIVE, "Listen", "read", "process (p)"),
        (MANAGE, "Manage", "configure", "(rcl)"),
    ],
)
def test_a_caller_that_lacks_a_right_is_told_which(
    ability: Ability, word: str, permission: str, allowed: str
) -> None:
    error = NotAuthorized("401")

    assert word in remedy(ability, error)
    assert permission in remedy(ability, error, Rights.RABBITMQ)
    assert allowed in remedy(ability, error, Rights.STORAGE)


def test_a_failure_by_silence_is_over_as_soon_as_the_namespace_answers() -> None:
    lost = Abilities().failed(MANAGE, Unreachable("refused"), at(0))
    lost = lost.failed(SEND, Unreachable("refused"), at(1))
    back = lost.worked(SEND, at(20))

    assert states(lost, 19) == {"send": NO, "manage": NO, "reach": NO}
    assert states(back, 20) == {"send": YES, "reach": YES}
    # An answer that refuses isn't over because other requests are answered.
    refused = lost.failed(MANAGE, NotAuthorized("401"), at(19)).worked(SEND, at(20))
    assert states(refused, 20) == {"send": YES, "manage": NO, "reach": YES}


def test_a_management_that_is_silent_alone_stays_failed() -> None:
    passes = Abilities().worked(SEND, at(0)).failed(MANAGE, NoAnswer("late"), at(5))
    passes = passes.worked(SEND, at(6))

    assert states(passes, 6) == {"send": YES, "manage": NO, "reach": YES}
