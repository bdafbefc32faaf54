"""The transfer example, simulated: stores and a queue that fail, and workers that are killed."""

import random

import attrs
import pytest
import trio
from trio.testing import MockClock

from examples.transfer.__main__ import CENTS, OPENING, Account, Transfer, Worker
from gateway.domain.errors import PreconditionFailed
from gateway.listening import Json
from gateway.listening.intents import steps
from gateway.listening.stores.values import Values
from tests.harness.faults import LoseAnswer, Refuse
from tests.listening.harness import LONGEST_TEST, ORDERS, Harness

TRANSFERS = 12
LIVES = 6  # of the workers, two at a time
SEEDS = range(25)


@attrs.define(eq=False)
class UnreliableStore:
    """`Versioned` in memory: takes its time, refuses, and loses answers, while `fails`."""

    rng: random.Random
    fails: bool = True
    kept: dict[str, bytes] = attrs.field(factory=dict)
    version: int = 0

    async def read(self, key: str) -> tuple[bytes | None, str]:
        read = self.kept.get(key), str(self.version)
        await self._pass()  # the read value is old by then
        return read

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        await self._pass()
        if if_match not in {"*", str(self.version)}:
            raise PreconditionFailed(key)
        assert value is not None
        self.kept[key] = value
        self.version += 1
        await self._pass()  # written, but its caller may never know
        return str(self.version)

    async def _pass(self) -> None:
        await trio.sleep(self.rng.uniform(0.0, 1.0))
        if self.fails and self.rng.random() < 0.1:
            raise ConnectionError


class WithoutMatch(UnreliableStore):
    """A planted bug: a write doesn't look whether the value has changed since it was read."""

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        return await super().write(key, value, if_match="*")


@attrs.frozen
class Forgetful(Account):
    """A planted bug: an account that doesn't know which transfers it has seen."""

    def after(self, transfer: Transfer, cents: int) -> "Account":
        return Forgetful(self.cents + cents, (*self.seen, transfer.id))


@attrs.define(eq=False)
class World:
    """Two accounts, and workers that are killed at any moment."""

    harness: Harness
    rng: random.Random
    first: UnreliableStore
    second: UnreliableStore
    account: type[Account]
    gives_first: bool  # a planted bug: money is given before it is taken
    problems: set[str] = attrs.field(factory=set)

    @property
    def accounts(self) -> tuple[Values[Account], Values[Account]]:
        kind = self.account
        return Values(self.first, kind, kind(OPENING)), Values(self.second, kind, kind(0))

    def handler(self):
        worker = Worker(*self.accounts, crash_before=None)
        order = (worker.give, worker.take) if self.gives_first else (worker.take, worker.give)
        return steps(*order, worker.end)

    async def look(self) -> tuple[Account, Account]:
        self.first.fails = self.second.fails = False
        first, second = self.accounts
        (ann, _), (bob, _) = await first.read("ann"), await second.read("bob")
        self.first.fails = self.second.fails = True
        if not set(bob.seen) <= set(ann.seen):
            self.problems.add("given before it was taken")
        return ann, bob

    async def run(self) -> None:
        harness = self.harness
        faulty = await harness.make_faulty()
        faults = [Refuse(), LoseAnswer(), None, None, None, None]
        faulty.fault = lambda operation, _: self.rng.choice(faults)
        await self._submit()
        options = {"format": Json(Transfer), "options": {"poison_threshold": None}}
        for _ in range(LIVES):
            with trio.move_on_after(self.rng.uniform(0.0, 30.0)):
                async with trio.open_nursery() as lives:
                    for _ in range(2):
                        listener = harness.listener(self.handler(), **options)
                        await lives.start(listener.run)
            await self.look()
        faulty.fault = lambda operation, _: None
        await harness.listen(self.handler(), **options)
        while await harness.waiting():  # noqa: ASYNC110 no event reports it
            await trio.sleep(1.0)
        for account, each in zip(await self.look(), (OPENING, 0), strict=True):
            if len(account.seen) != TRANSFERS or len(set(account.seen)) != TRANSFERS:
                self.problems.add("not once")
            if abs(account.cents - each) != TRANSFERS * CENTS:
                self.problems.add("wrong amount")

    async def _submit(self) -> None:
        """Some intents come twice, as those whose first submission had an unknown outcome do."""
        for number in range(TRANSFERS):
            transfer = Transfer(id=f"t{number}", cents=CENTS)
            message = attrs.evolve(Json(Transfer).build(transfer), message_id=transfer.id)
            for _ in range(self.rng.choice([1, 1, 2])):
                await self.harness.store.send(ORDERS, [message])


def problems_of(
    seed: int, *, store=UnreliableStore, account=Account, gives_first: bool = False
) -> set[str]:
    async def main() -> set[str]:
        rng = random.Random(seed)
        with trio.fail_after(LONGEST_TEST):
            async with trio.open_nursery() as nursery:
                harness = Harness(nursery=nursery)
                await harness.create()
                world = World(harness, rng, store(rng), store(rng), account, gives_first)
                await world.run()
                nursery.cancel_scope.cancel()
        return world.problems

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_transfer_is_made_once_whatever_fails_and_whenever_workers_are_killed(seed):
    assert problems_of(seed) == set()


@pytest.mark.parametrize(
    "bug", [{"store": WithoutMatch}, {"account": Forgetful}, {"gives_first": True}]
)
def test_a_planted_bug_is_found(bug):
    assert any(problems_of(seed, **bug) for seed in SEEDS)
