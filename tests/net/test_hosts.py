"""Several hosts of one server: any will do, in one dial and within its time."""

import random
from collections.abc import Sequence

import attrs
import pytest
import trio

from gateway.domain.errors import BrokerError, NotAuthorized, Unavailable
from gateway.net.hosts import Hosts
from gateway.net.server_address import ServerAddress

A, B, C = (ServerAddress(host=name, port=5672) for name in "abc")


@attrs.define
class Cluster:
    """A use of hosts that notes which one was tried, when, and for how long it may take."""

    errors: dict[ServerAddress, BrokerError] = attrs.field(factory=dict)
    frozen: Sequence[ServerAddress] = ()
    tried: list[ServerAddress] = attrs.field(factory=list)
    shares: list[float] = attrs.field(factory=list)

    async def use(self, place: ServerAddress, seconds: float) -> str:
        self.tried.append(place)
        self.shares.append(seconds)
        if place in self.frozen:
            await trio.sleep(seconds)
            raise Unavailable(f"{place}: no answer")
        await trio.lowlevel.checkpoint()
        if place in self.errors:
            raise self.errors[place]
        return place.host


def hosts(*places: ServerAddress, seed: int = 0) -> Hosts:
    return Hosts(places=places or (A, B, C), rng=random.Random(seed))


def refused(place: ServerAddress) -> Unavailable:
    return Unavailable(f"{place}: refused")


async def test_the_next_host_is_tried_when_one_fails() -> None:
    cluster = Cluster({A: refused(A), B: refused(B)})

    assert await hosts().first(cluster.use, 3.0) == "c"


async def test_the_first_host_differs_between_gateways() -> None:
    firsts = {await hosts(seed=seed).first(Cluster().use, 3.0) for seed in range(20)}

    assert firsts == {"a", "b", "c"}


async def test_a_host_whose_connection_was_lost_is_the_last_to_be_tried_next() -> None:
    cluster, one = Cluster(), hosts()
    lost = await one.first(cluster.use, 3.0)
    cluster.errors = {place: refused(place) for place in (A, B, C)}
    cluster.tried.clear()

    with pytest.raises(Unavailable):
        await one.first(cluster.use, 3.0)

    assert len(cluster.tried) == 3
    assert cluster.tried[-1].host == lost


async def test_hosts_that_hang_leave_time_for_the_others(autojump_clock: object) -> None:
    cluster = Cluster(frozen=(A, B))
    for seed in range(3):
        began = trio.current_time()

        assert await hosts(seed=seed).first(cluster.use, 3.0) == "c"
        assert trio.current_time() - began <= 2.0 + 1e-6


async def test_one_that_refuses_at_once_leaves_its_share_to_the_others(
    autojump_clock: object,
) -> None:
    cluster = Cluster({place: refused(place) for place in (A, B, C)})

    with pytest.raises(Unavailable):
        await hosts().first(cluster.use, 3.0)

    assert cluster.shares == pytest.approx([1.0, 1.5, 3.0])


async def test_an_error_names_each_host_and_each_cause_once(autojump_clock: object) -> None:
    cluster = Cluster({A: refused(A), B: refused(B)}, frozen=(C,))

    with pytest.raises(Unavailable) as caught:
        await hosts().first(cluster.use, 3.0)

    text = str(caught.value)
    assert all(text.count(str(place)) == 1 for place in (A, B, C))
    assert text.count("refused") == text.count("no answer") == 1


async def test_a_complaint_of_one_host_about_the_caller_is_an_outage_while_others_are_down() -> (
    None
):
    wrong = NotAuthorized("wrong password")

    with pytest.raises(NotAuthorized):
        await hosts(A, B).first(Cluster({A: wrong, B: wrong}).use, 3.0)
    with pytest.raises(Unavailable, match="wrong password"):
        await hosts(A, B).first(Cluster({A: wrong, B: refused(B)}).use, 3.0)


async def test_the_error_of_a_single_host_is_its_own() -> None:
    own = refused(A)

    with pytest.raises(Unavailable) as caught:
        await hosts(A).first(Cluster({A: own}).use, 3.0)

    assert caught.value is own
