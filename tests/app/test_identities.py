"""Errors and doubts if two namespaces, or two pairs, seem to be one."""

from pathlib import Path
from typing import Any

import pytest

from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import about_primary, check_adopted, likeness, ownership
from gateway.app.operations.findings import Grade
from gateway.config.options import Config, Namespace, Pairing
from gateway.domain.identity import Identity, fingerprint
from gateway.pairing.options import PairOptions
from gateway.pairing.records.ownership import Owner
from gateway.pairing.syphon.destination import Destination

STORE = Identity("store", "00")
CLUSTER = Identity("rabbitmq", "rabbit@mq/%2F")
FOREIGN = Owner(fingerprint="f" * 16, name="store:other")


def pairing(folder: Path = Path("var")) -> Pairing:
    return Pairing(
        primary="east",
        secondary="west",
        options=PairOptions(label="bus"),
        state=folder / "state.json",
    )


def config(east: str, west: str) -> Config:
    return Config(
        namespaces={
            "east": Namespace(name="east", url=east),
            "west": Namespace(name="west", url=west),
        }
    )


APART = config("rabbitmq://u@mq.eu.example", "rabbitmq://u@mq.us.example")
OWN = config("rabbitmq://u@mq.eu.example", "embedded:west.db")


def destination(**changes: Any) -> Destination:
    made = Destination(primary=None, addresses=("amqp://mq.eu.example",))  # type: ignore[arg-type]
    made.has_answered = True
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_store_that_is_both_is_refused() -> None:
    verdict = likeness(APART, pairing(), STORE, STORE)

    assert verdict is not None
    assert verdict[0] is Grade.BAD
    assert "one and the same" in verdict[1]


def test_two_clusters_of_one_name_at_two_addresses_are_a_doubt_with_its_remedy() -> None:
    verdict = likeness(APART, pairing(), CLUSTER, CLUSTER)

    assert verdict is not None
    assert verdict[0] is Grade.WARNING
    assert "rabbitmqctl set_cluster_name" in verdict[1]


@pytest.mark.parametrize(("one", "other"), [(STORE, CLUSTER), (None, STORE), (None, None)])
def test_two_namespaces_are_a_pair(one: Identity | None, other: Identity | None) -> None:
    assert likeness(APART, pairing(), one, other) is None


def test_a_backlog_of_another_pair_is_refused_and_the_key_is_named() -> None:
    verdict = ownership(APART, pairing(), [FOREIGN], destination())

    assert verdict is not None
    grade, text = verdict
    assert grade is Grade.BAD
    assert "another pairing.label" in text
    assert "store:other" in text
    assert f"--adopt {'f' * 16}" in text


@pytest.mark.parametrize(
    ("owner", "changes"),
    [
        (fingerprint("amqp://mq.eu.example"), {}),
        (fingerprint(str(STORE)), {"identity": STORE}),
        ("f" * 16, {"adopted": frozenset({"f" * 16})}),
        # The pair's own primary was replaced: no other pair uses the label.
        ("f" * 16, {"formerly": "f" * 16}),
    ],
)
def test_a_backlog_of_ones_own_is_none_of_another_pair(owner: str, changes: Any) -> None:
    found = ownership(APART, pairing(), [Owner(fingerprint=owner)], destination(**changes))

    assert found is None


def test_an_uncertain_identity_is_a_doubt() -> None:
    silent = ownership(APART, pairing(), [FOREIGN], destination(has_answered=False))
    own_store = ownership(OWN, pairing(), [FOREIGN], destination())

    assert [verdict and verdict[0] for verdict in (silent, own_store)] == [Grade.WARNING] * 2


def test_the_replacement_of_a_primary_is_told() -> None:
    with_identity = about_primary(pairing(), destination(identity=STORE))
    without = about_primary(pairing(), destination())

    assert "it keeps this identity at another address" in with_identity
    assert "at another address it counts as another primary" in without
    assert all("--adopt" in text for text in (with_identity, without))


@pytest.mark.parametrize("text", ["", "x", "F" * 16, "f" * 15])
def test_an_invalid_fingerprint_is_not_adopted(text: str) -> None:
    with pytest.raises(Failure, match="16 hexadecimal digits") as caught:
        check_adopted([text])

    assert caught.value.code is ExitCode.WRONG
