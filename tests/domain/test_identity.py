import pytest

from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.identity import (
    FINGERPRINT,
    Identity,
    fingerprint,
    known_to_all,
    parse_identity,
    rabbitmq_identity,
)


@pytest.mark.parametrize(
    "identity",
    [
        Identity("store", "00000000000000ff"),
        Identity("memory", "ab12"),
        rabbitmq_identity("rabbit@host", "/"),
        rabbitmq_identity("höst with/slash", "a:b"),
    ],
)
def test_the_text_of_an_identity_can_be_read_again(identity):
    assert parse_identity(str(identity)) == identity


@pytest.mark.parametrize(
    "text", ["", "store", "store:", ":x", "Store:x", "store:ä", "store:" + "x" * 999]
)
def test_an_invalid_identity_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse_identity(text)


def test_cluster_and_vhost_can_not_be_shifted():
    assert rabbitmq_identity("a/b", "c") != rabbitmq_identity("a", "b/c")


def test_only_an_identity_in_memory_ends_with_its_process():
    lasting = {kind: Identity(kind, "x").is_lasting for kind in ("store", "memory", "rabbitmq")}

    assert lasting == {"store": True, "memory": False, "rabbitmq": True}


def test_a_name_that_people_give_may_be_given_twice():
    assert Identity("store", "x").is_unique
    assert not Identity("rabbitmq", "x").is_unique


def test_a_fingerprint_is_short_and_stays_the_same():
    assert fingerprint("store:1") == "c200ba0b621c037a"
    assert FINGERPRINT.fullmatch(fingerprint("\ud800"))


def test_the_default_name_of_a_cluster_is_no_identity_of_several_hosts():
    default, named = rabbitmq_identity("rabbit@host", "/"), rabbitmq_identity("orders", "a@b")

    assert known_to_all(default, 1) == default
    assert known_to_all(named, 3) == named
    with pytest.raises(NotSupported, match="set_cluster_name"):
        known_to_all(default, 2)
