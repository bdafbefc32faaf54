"""Ask the primary about every entity that failed over, until it answers often enough."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff, jittered
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityDisabled, EntityNotFound, OutcomeUnknown
from gateway.domain.failover import State
from gateway.pairing.options import PairOptions
from gateway.pairing.standings import Standings
from gateway.ports import Broker

AT_ONCE: Final = 16  # probes on their way; more entities take turns
AFTER_SUCCESS: Final = 1.0  # seconds between probes of an entity that is half open
JITTER: Final = 0.2


@attrs.define(eq=False, kw_only=True)
class Prober:
    """One task per failed-over entity; none while all is well."""

    primary: Broker
    standings: Standings
    options: PairOptions
    rng: random.Random
    _probed: set[str] = attrs.field(factory=set, init=False)
    _turns: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(AT_ONCE), init=False
    )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            seen = -1
            while True:
                seen = await self.standings.changes.wait(seen)
                for entity in self.standings.failed_over():
                    if entity.key not in self._probed:
                        self._probed.add(entity.key)
                        nursery.start_soon(self._probe_until_back, entity)

    async def _probe_until_back(self, entity: EntityPath) -> None:
        backoff = Backoff(first=1.0, cap=self.options.ping_interval, jitter=JITTER)
        failures = 0
        try:
            # At once after the failover, then later and later.
            while self._is_out(entity):
                if await self._probe(entity):
                    failures = 0
                    await self._wait(entity, jittered(AFTER_SUCCESS, JITTER, self.rng))
                else:
                    failures += 1
                    await self._wait(entity, backoff.delay(failures, self.rng))
        finally:
            self._probed.discard(entity.key)

    async def _probe(self, entity: EntityPath) -> bool:
        async with self._turns:
            if not self._is_out(entity):
                return True
            try:
                with trio.move_on_after(self.options.attempt_timeout) as scope:
                    await self.primary.probe(entity)
            except (EntityNotFound, EntityDisabled) as error:
                self.standings.found_unreachable(entity, error)
                return False
            except BrokerError as error:
                self.standings.probe_failed(entity, error)
                return False
        if scope.cancelled_caught:
            limit = self.options.attempt_timeout
            self.standings.probe_failed(entity, OutcomeUnknown(f"no answer within {limit} s"))
            return False
        self.standings.probed(entity)
        return True

    async def _wait(self, entity: EntityPath, seconds: float) -> None:
        """Sleep; less if the entity's standing changes meanwhile."""
        state = self.standings.state_of(entity)
        with trio.move_on_after(seconds):
            seen = self.standings.changes.version
            while self.standings.state_of(entity) is state:
                seen = await self.standings.changes.wait(seen)

    def _is_out(self, entity: EntityPath) -> bool:
        return self.standings.state_of(entity) in {State.SECONDARY, State.HALF_OPEN}
