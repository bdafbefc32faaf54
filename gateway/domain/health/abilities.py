"""
The abilities of a namespace, as far as its answers to this gateway have shown them:

    send        accepts messages, or answers a probe
    receive     delivers messages, or lets a receiver wait
    manage      inspects, creates and changes entities
    reach       answers, whatever the answer

The evidence comes from ordinary requests, and ages: an ability without recent evidence is unknown,
and so is an ability that last worked before the namespace became unreachable. An error about one
entity or one message doesn't count for the others.
"""

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import field

from gateway.domain.errors import (
    MESSAGE_FAULTS,
    BrokerError,
    Busy,
    CredentialRefused,
    LoginRefused,
    NoAnswer,
    NotAuthorized,
    NoToken,
    StorageFull,
    Unreachable,
    Untrusted,
)
from gateway.domain.status.figures import (
    gauge,
)

FRESH: Final = timedelta(seconds=90)  # older evidence doesn't count
# A failure so soon after a success concerns one entity, unless no connection can be made.
AMONG: Final = timedelta(seconds=2)


class Ability(enum.Enum):
    SEND = "send"
    RECEIVE = "receive"
    MANAGE = "manage"
    REACH = "reach"


class Rights(enum.Enum):
    """The terms in which a namespace grants access."""

    SERVICE_BUS = "service bus"  # a key's rights: Send, Listen, Manage
    RABBITMQ = "rabbitmq"  # a user's permissions, and the tag management
    STORAGE = "storage"  # the account's key may do everything
    SERVICE_BUS_ROLES = "service bus roles"  # of an identity in Entra ID
    STORAGE_ROLES = "storage roles"


class AbilityState(enum.Enum):
    """Says if the namespace has the ability now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class AbilityStatus:
    """The status of one ability. None: not known, or never happened."""

    state: AbilityState = field(
        default=AbilityState.UNKNOWN,
        metadata=gauge(
            "pairgate_namespace_ability",
            "1: the ability works; 0: it fails.",
            of=lambda one: (
                None if one.state is AbilityState.UNKNOWN else one.state is AbilityState.YES
            ),
        ),
    )
    since: datetime | None = field(  # of the state
        default=None,
        metadata=gauge(
            "pairgate_namespace_ability_since_time_seconds",
            "Last change of the ability, in seconds since 1970.",
            of=lambda one: None if one.state is AbilityState.UNKNOWN else one.since,
        ),
    )
    seen: datetime | None = None  # the last evidence
    error: str | None = None  # the last one, even if it is over
    failed: datetime | None = None  # the date of that error
    remedy: str | None = None  # for that error


@attrs.frozen(kw_only=True)
class Abilities:
    """The abilities of one namespace."""

    rights: Rights = Rights.SERVICE_BUS
    _known: Mapping[Ability, AbilityStatus] = attrs.field(factory=dict)
    # Abilities that failed last because the namespace couldn't be reached, or didn't answer.
    _silent: frozenset[Ability] = frozenset()

    def worked(self, ability: Ability, at: datetime) -> "Abilities":
        """Record a success of that ability."""
        return self._with(self._succeeded(one, at) for one in {ability, Ability.REACH})

    def waits(self, since: datetime, at: datetime) -> "Abilities":
        """Record that a receiver has waited for messages since `since` without an error."""
        known = self._of(Ability.RECEIVE)
        was_later = known.failed is not None and known.failed > since
        if was_later or self._of(Ability.REACH).state is AbilityState.NO:
            return self
        return self._with([self._succeeded(Ability.RECEIVE, at)])

    def failed(self, ability: Ability, error: BrokerError, at: datetime) -> "Abilities":
        """Record a failure: the namespace answered with that error, or didn't answer."""
        if isinstance(error, MESSAGE_FAULTS):
            return self  # perhaps the namespace was never asked
        if _is_silence(error):
            silent = attrs.evolve(self, silent=self._silent | {ability})
            found = [self._failed(ability, ability, error, at)]
            if not (ability is Ability.MANAGE and self._data_passes(at)):
                found.append(self._failed(Ability.REACH, ability, error, at))
            return silent._with(found)
        heard = attrs.evolve(self, silent=self._silent - {ability})
        return heard._with(heard._answered(ability, error, at))

    def _answered(
        self, ability: Ability, error: BrokerError, at: datetime
    ) -> list[tuple[Ability, AbilityStatus]]:
        """The abilities as an error shows them that is no silence."""
        if error.counts_as_outage:  # an answer of the namespace, or a broken connection
            asked_for_more = ability is not Ability.REACH
            return [self._failed(ability, ability, error, at)] if asked_for_more else []
        was_asked = not isinstance(error, CredentialRefused)  # else the provider refused
        answered = [self._succeeded(Ability.REACH, at)] if was_asked else []
        if isinstance(error, NotAuthorized) and ability is not Ability.REACH:
            return [*answered, self._failed(ability, ability, error, at)]
        if ability is Ability.MANAGE and not isinstance(error, Busy):
            return [*answered, self._succeeded(ability, at)]
        return answered

    def statuses(self, at: datetime) -> Mapping[str, AbilityStatus]:
        """All four abilities by their names, as of that date."""
        return {each.value: self._now(each, at) for each in Ability}

    @property
    def is_lost(self) -> bool:
        """True if the last evidence says that the namespace can't be reached."""
        return self._of(Ability.REACH).state is AbilityState.NO

    def _now(self, ability: Ability, at: datetime) -> AbilityStatus:
        known = self._of(ability)
        if known.seen is None:
            return known
        if at - known.seen > FRESH:
            return attrs.evolve(known, state=AbilityState.UNKNOWN, since=known.seen)
        reach = self._of(Ability.REACH)
        if known.state is AbilityState.NO and self._is_over(ability, known, reach):
            return attrs.evolve(known, state=AbilityState.UNKNOWN, since=reach.since)
        lost = reach.since if reach.state is AbilityState.NO else None
        if lost is not None and known.state is AbilityState.YES and known.seen <= lost:
            return attrs.evolve(known, state=AbilityState.UNKNOWN, since=lost)
        return known

    def _is_over(self, ability: Ability, known: AbilityStatus, reach: AbilityStatus) -> bool:
        """True if a silence made it fail, and the namespace has answered since."""
        if ability is Ability.REACH or ability not in self._silent or known.failed is None:
            return False
        answers = reach.since if reach.state is AbilityState.YES else None
        return answers is not None and answers > known.failed

    def _of(self, ability: Ability) -> AbilityStatus:
        return self._known.get(ability) or AbilityStatus()

    def _with(self, found: Iterable[tuple[Ability, AbilityStatus]]) -> "Abilities":
        return attrs.evolve(self, known={**self._known, **dict(found)})

    def _succeeded(self, ability: Ability, at: datetime) -> tuple[Ability, AbilityStatus]:
        known = self._of(ability)
        since = known.since if known.state is AbilityState.YES and self._is_fresh(known, at) else at
        return ability, attrs.evolve(known, state=AbilityState.YES, since=since, seen=at)

    def _failed(
        self, ability: Ability, tried: Ability, error: BrokerError, at: datetime
    ) -> tuple[Ability, AbilityStatus]:
        """The status of `ability` after `tried` has failed."""
        known = attrs.evolve(
            self._of(ability),
            error=str(error),
            failed=at,
            remedy=remedy(tried, error, self.rights),
        )
        worked = known.seen if known.state is AbilityState.YES else None
        if worked is not None and at - worked < AMONG and not is_sure(error):
            return ability, known
        still = known.state is AbilityState.NO and self._is_fresh(known, at)
        since = known.since if still else at
        return ability, attrs.evolve(known, state=AbilityState.NO, since=since, seen=at)

    def _data_passes(self, at: datetime) -> bool:
        """True if sends or receives work: a management endpoint may be down by itself."""
        known = [self._of(Ability.SEND), self._of(Ability.RECEIVE)]
        return any(one.state is AbilityState.YES and self._is_fresh(one, at) for one in known)

    @staticmethod
    def _is_fresh(known: AbilityStatus, at: datetime) -> bool:
        return known.seen is not None and at - known.seen <= FRESH


def is_sure(error: Exception) -> bool:
    """True if the error concerns the whole namespace: no connection to it can be made or used."""
    whole = Unreachable | Untrusted | NoToken | CredentialRefused | LoginRefused
    return isinstance(error, whole)


def _is_silence(error: BrokerError) -> bool:
    return isinstance(error, Unreachable | NoAnswer | Untrusted)


_REMEDIES: Final[Mapping[type[BrokerError], str]] = {
    Untrusted: "replace a certificate that has expired, was revoked or is for other hosts; set"
    " tls.ca of the namespace to the authority that signed its certificate, and tls.certificate"
    " and tls.key if it requires a client certificate",
    StorageFull: "free the disk of the namespace",
    Busy: "send less, or give the namespace more capacity",
    NoAnswer: "check whether the namespace hangs or is overloaded, or a network drops packets",
    Unreachable: "check whether the namespace runs, and check its address, DNS and firewalls",
    NoToken: "check whether the identity provider can be reached from here, and its status",
    CredentialRefused: "correct the credential of the namespace, as the identity provider says",
}
_OF_LOGIN: Final = {Rights.RABBITMQ: "check user and password"}
_RIGHTS: Final = {Ability.SEND: "Send", Ability.RECEIVE: "Listen", Ability.MANAGE: "Manage"}
_PERMISSIONS: Final = {
    Ability.SEND: "write",
    Ability.RECEIVE: "read",
    Ability.MANAGE: "configure (and, where the namespace has `management`, the tag management)",
}
# Permissions of a SAS for the Queue service (`sp`).
_ALLOWED: Final = {
    Ability.SEND: "add (a)",
    Ability.RECEIVE: "process (p)",
    Ability.MANAGE: "read, create and list (rcl)",
}


# Built-in roles of Azure.
_ROLES: Final = {
    Rights.SERVICE_BUS_ROLES: {
        Ability.SEND: "Azure Service Bus Data Sender",
        Ability.RECEIVE: "Azure Service Bus Data Receiver",
        Ability.MANAGE: "Azure Service Bus Data Owner",
    },
    Rights.STORAGE_ROLES: {
        Ability.SEND: "Storage Queue Data Message Sender",
        Ability.RECEIVE: "Storage Queue Data Message Processor",
        Ability.MANAGE: "Storage Queue Data Contributor",
    },
}


def remedy(ability: Ability, error: BrokerError, rights: Rights = Rights.SERVICE_BUS) -> str:
    """Return a sentence of advice to the operator who reads that error."""
    if isinstance(error, LoginRefused):
        return _OF_LOGIN.get(rights, "check key name and key, or user and password")
    if isinstance(error, NotAuthorized) and not isinstance(error, CredentialRefused):
        match rights:
            case Rights.SERVICE_BUS_ROLES | Rights.STORAGE_ROLES:
                role = _ROLES[rights].get(ability, _ROLES[rights][Ability.RECEIVE])
                return f"give the identity the role {role}; a new role takes minutes to work"
            case Rights.RABBITMQ:
                permission = _PERMISSIONS.get(ability, "read")
                return f"give the user the permission {permission} in the vhost"
            case Rights.STORAGE:
                allowed = _ALLOWED.get(ability, "read (r)")
                return (
                    "check the account's name and key, and the clock of this machine; a SAS must"
                    f" allow {allowed}"
                )
            case Rights.SERVICE_BUS:
                right = _RIGHTS.get(ability, "Listen")
                return f"check key and key name, and give the key the right {right}"
    found = (text for kind, text in _REMEDIES.items() if isinstance(error, kind))
    return next(found, "check the health and the log of the namespace")
