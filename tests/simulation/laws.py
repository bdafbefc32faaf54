"""The promises of a pair beside the fate of messages, judged while it runs."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from math import inf
from typing import Final

import attrs
import trio

from gateway.checker.outages import Outage
from gateway.domain.access import MAX_CLOCK_SKEW
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotAuthorized, Outcome, Unreachable
from gateway.domain.events.gateway import EntityStateChanged, Event, LoopPaused
from gateway.domain.failover import State
from gateway.domain.health.flapping import WINDOW
from gateway.domain.message import AcceptedBy, Complete
from gateway.pairing.options import OnUnknown
from gateway.pairing.prober import BETWEEN_RETURNS
from tests.harness.faults import Call, Operation
from tests.simulation.access import TOKENS_LIFE
from tests.simulation.clocks import Clocks
from tests.simulation.scenario import FULL, NO_LOGIN, Front, Scenario

BACKLOG: Final = frozenset({State.SECONDARY.value, State.HALF_OPEN.value})
PRIMARY: Final = frozenset({State.PRIMARY.value, State.SUSPECT.value})
TROUBLED: Final = BACKLOG | {State.SUSPECT.value}
# Seconds, at most, until a troubled entity is asked for after a return: several wait for each
# other where the primary was slow.
ASKED: Final = 4.0
JUDGED: Final = 1.0  # seconds: a shorter attempt that was cut off says little
BACK: Final = 0.5  # seconds after which what was in trouble is well
SLACK: Final = 0.1  # seconds for what isn't waiting for a namespace
QUICK: Final = 0.1  # seconds, on average, of an answer that comes within any `suspect_wait`
BESIDE: Final = "another entity had no answer in time"
# So far behind the gateway's a client's clock makes no token that is good: it has whole seconds.
TOO_FAR_BEHIND: Final = TOKENS_LIFE - 1.0 + MAX_CLOCK_SKEW.total_seconds()  # seconds


@attrs.define(eq=False)
class _Streak:
    """An entity's attempts from the gateway, as seen from outside."""

    outage: Outage  # of whatever may count
    state: str = State.PRIMARY.value
    changed: float = -1.0
    before: str = State.PRIMARY.value  # the last change
    changed_before: float = -1.0
    failing_since: float | None = None  # of what must count
    last_failure: float = 0.0
    overdue: bool = False
    # Moments since the failover, and of it, when a send or probe of anybody was answered in time.
    succeeded: list[float] = attrs.field(factory=list)
    probes: int = 0  # in a row since the last failure, in time
    flaps: int = 0
    returned: float = -inf
    on_trial: bool = False  # it came back by probes or trials

    @property
    def proof(self) -> float:
        """Seconds without a failure that a return must have."""
        return min(300.0, 20.0 * 2**self.flaps) if self.flaps else 0.0

    def was_well(self, moment: float) -> bool:
        """True if it was healthy then, as far as the last two changes tell."""
        state = self.state if moment > self.changed else self.before
        return state == State.PRIMARY.value and moment > self.changed_before


@attrs.define(eq=False)
class Laws:
    """
    Watches sends, probes and states; `broken` says in sentences what must not be.

    Each law holds where no other fault hides it; `Scenario` tells.
    """

    scenario: Scenario
    clocks: Clocks
    broken: list[str] = attrs.field(factory=list)
    seen: Counter[str] = attrs.field(factory=Counter)
    _may_have_arrived: dict[str, float] = attrs.field(factory=dict)  # message ids, and when last
    _unclear: set[str] = attrs.field(factory=set)  # message ids of sends without an answer
    _void_before: float = -1.0  # attempts that began earlier say nothing
    # The sends of each syphon to a frozen entity: their starts and ends.
    _frozen: dict[tuple[str, str], list[tuple[float, float]]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    # Message ids that waited on the backlog at the end of the lone freeze of a run, and that no
    # syphon had sent; and when one of them was first sent afterwards, for each entity.
    _waited: set[object] = attrs.field(factory=set)
    _resumed: dict[tuple[str, str], float] = attrs.field(factory=dict)
    _lost: float | None = None  # since when no connection to the primary can be made
    _silent: dict[str, float] = attrs.field(factory=dict)  # entities without answers, and when
    _answered: float = -1.0  # the start of the newest attempt that was answered
    _returned: float = -inf  # when the gateway last learned that the primary can be reached again
    # The entities that were in trouble then, and when each must have been asked.
    _unasked: dict[str, float] = attrs.field(factory=dict)
    # Failovers that look too early: the entity, the time, and the sentence.
    _early: list[tuple[str, float, str]] = attrs.field(factory=list)
    _streaks: dict[str, _Streak] = attrs.field(init=False)

    @_streaks.default
    def _no_streaks(self) -> dict[str, _Streak]:
        silence = self.scenario.pair.failover_interval + SLACK
        return defaultdict(lambda: _Streak(Outage(silence)))

    def note_call(self, process: str, namespace: str, call: Call) -> None:
        """A process has asked a namespace."""
        self._note_waiting(namespace, call)
        if namespace != "primary" or call.operation not in {Operation.SEND, Operation.PROBE}:
            return
        streak = self._streaks[call.entity.key]
        in_time = call.took < self.scenario.late
        if call.outcome is None and in_time:
            streak.succeeded.append(trio.current_time())
        if process != "gateway" and call.operation is Operation.SEND:
            self._judge_frozen(process, call)
        if process == "gateway":
            self._note_namespace(call, streak)
            self._note_silence(call, streak)
        if process == "gateway":
            self._note_probes(call, streak)
            self._note_asked(call)
            self._excuse_early(call)
        if process == "gateway" and call.operation is Operation.SEND:
            self._note_attempt(call, streak)
        elif call.outcome is None and process.endswith("gateway"):
            self._lost = None

    def note_return(self) -> None:
        """The gateway has learned, be it by a receiver, that the primary can be reached again."""
        if self.scenario.killed & {"gateway", "pause"}:
            return  # it forgets, and judges others' time by its own
        now = trio.current_time()
        # The pair may heed this return only some time after the last one that it heeded.
        is_first = now > self._returned + 2.0 * BETWEEN_RETURNS
        # Probes that have begun before hang until their time limit.
        hung = self.scenario.pair.attempt_timeout
        due = now + ASKED + hung + (0.0 if is_first else BETWEEN_RETURNS)
        self._returned = now
        troubled = (key for key, one in self._streaks.items() if one.state in TROUBLED)
        self._unasked = {key: max(due, self._unasked.get(key, due)) for key in troubled}

    def _note_asked(self, call: Call) -> None:
        """
        Judge that the gateway asks for each troubled entity soon after a return. One that it asks
        for meanwhile is asked again after that; and a failure is another outage.
        """
        due = self._unasked.get(call.entity.key)
        began, soon = trio.current_time() - call.took, trio.current_time() + ASKED
        if due is None:
            return
        if began < self._returned:
            self._unasked[call.entity.key] = max(due, soon)
        elif call.outcome is not None:
            self._unasked.clear()
        else:
            del self._unasked[call.entity.key]
            if began > due:
                self.broken.append(f"{call.entity} was asked for {began - due:.1f} s too late")

    def _note_waiting(self, namespace: str, call: Call) -> None:
        freeze = self.scenario.lone_freeze
        if freeze is None or namespace != "secondary" or call.operation is not Operation.SEND:
            return
        if call.outcome is None and freeze.start <= trio.current_time() < freeze.end:
            self._waited.update(each.message_id for each in call.messages)

    def _judge_frozen(self, process: str, call: Call) -> None:
        """
        Judge that a syphon whose send to an entity has no answer sends it no other meanwhile: each
        send to a frozen primary may become a copy. Where all stand still, nobody knows so soon.
        """
        ended = trio.current_time()
        began, place = ended - call.took, (process, call.entity.key)
        lone, freeze = self.scenario.lone_freeze, self.scenario.freeze_at(began)
        waited = self._waited.intersection(each.message_id for each in call.messages)
        if lone is not None and began >= lone.end and waited:
            self._resumed[place] = min(began, self._resumed.get(place, inf))
        if call.outcome is None or freeze is None or "pause" in self.scenario.killed:
            return
        ended = min(ended, freeze.end)
        others = self._frozen[place]
        for first, last in others:
            early, late = sorted((first, began))
            known = early + self.scenario.doubted + SLACK
            if known < late < (last if early == first else ended):
                self.broken.append(f"{process} sent to {call.entity}, which doesn't answer")
        others.append((began, ended))
        self._waited.difference_update(each.message_id for each in call.messages)
        self.seen["a syphon sent to a frozen primary"] += 1

    def _note_probes(self, call: Call, streak: _Streak) -> None:
        """
        Count probes in a row: an outage ends the row, and a refusal doesn't.

        An attempt cut off soon, or a send that was accepted late, may end the row or not. So may
        one that was late when it was cut off: it has ended the row when it became late.
        """
        is_probe = call.operation is Operation.PROBE
        says_little = call.error is None and call.took < JUDGED
        was_late = not is_probe and call.error is None and call.took >= self.scenario.late
        may_not_count = says_little or was_late or self._may_be_a_clients(call)
        if call.outcome is None and call.took < self.scenario.late:
            streak.probes += is_probe
        elif call.error is None or call.error.counts_as_outage:
            streak.probes = streak.probes if may_not_count else 0
            if is_probe:
                self._excuse(call)

    def _excuse(self, probe: Call) -> None:
        """
        A probe that fails counts for its entity, and may count for all suspect ones.

        After a quiet interval it may have begun a new streak.
        """
        now = trio.current_time()
        began, interval = now - probe.took, self.scenario.pair.failover_interval
        for streak in self._streaks.values():
            if streak.state == State.SUSPECT.value:
                streak.outage.record_failure(began, now, counts=False)
                if began - streak.last_failure >= interval:
                    streak.failing_since, streak.overdue = None, False

    def _excuse_early(self, call: Call) -> None:
        """Time in which an attempt hung wasn't quiet: it went on with the streak before it."""
        now, slow = trio.current_time(), self.scenario.pair.slow_call_duration
        if slow is None or call.took < slow:
            return
        self._early = [
            (key, at, text)
            for key, at, text in self._early
            if key != call.entity.key or not now - call.took + slow < at < now
        ]

    def _note_namespace(self, call: Call, streak: _Streak) -> None:
        """
        Judge that no send goes to the primary for a healthy entity while no connection can be made.
        """
        began = trio.current_time() - call.took
        sent_well = call.operation is Operation.SEND and streak.state == State.PRIMARY.value
        lost = self._lost is not None and began > self._lost + SLACK
        elsewhere = self.scenario.troubled_namespaces == {"primary"}
        if sent_well and lost and elsewhere and began > streak.changed:
            self.broken.append(f"{call.entity} was sent to, and the primary can't be reached")
        if isinstance(call.error, Unreachable):
            told = began > self._void_before  # otherwise to a process that has died meanwhile
            if self._lost is None and told and not self._may_be_a_clients(call):
                self._lost = trio.current_time()
        elif call.outcome is None or (call.error and not call.error.counts_as_outage):
            self._lost = None

    def _note_silence(self, call: Call, streak: _Streak) -> None:
        """
        Judge that no healthy entity is sent to unasked, while another one has had no answer in time
        and nothing was answered since.
        """
        now = trio.current_time()
        began, is_send = now - call.took, call.operation is Operation.SEND
        if call.outcome is None or (call.error and not call.error.counts_as_outage):
            self._answered = max(self._answered, began)
            self._silent.clear()
            return
        others = [at for key, at in self._silent.items() if key != call.entity.key]
        elsewhere = self.scenario.troubled_namespaces == {"primary"}
        unasked = any(began > at + SLACK for at in others) and streak.was_well(began)
        if is_send and elsewhere and unasked:
            self.broken.append(f"{call.entity} was sent to unasked, and another entity is silent")
        in_vain = call.error is None and call.took >= self.scenario.late
        if is_send and in_vain and began > max(self._answered, self._void_before):
            self._silent[call.entity.key] = began + self.scenario.late

    def _may_be_a_clients(self, call: Call) -> bool:
        """A link of AMQP that attaches asks the primary itself: the pair passes that on."""
        return call.operation is Operation.PROBE and self.scenario.parts.front is Front.AMQP

    def note_event(self, event: Event) -> None:
        """The pair tells something."""
        if isinstance(event, LoopPaused):
            self.forget_streaks()
            if "pause" not in self.scenario.killed:
                self.broken.append(f"a pause of {event.seconds:.3f} s, and nothing stood still")
        if isinstance(event, EntityStateChanged):
            self._note_change(event, self._streaks[event.entity.key])

    def forget_streaks(self) -> None:
        """The gateway stood still or died: what it judged is void."""
        self._void_before, self._lost = trio.current_time(), None
        self._silent.clear()
        self._unasked.clear()
        for streak in self._streaks.values():
            streak.failing_since = None
            streak.overdue = False

    def note_restart(self, states: dict[str, str]) -> None:
        """The gateway lives again, with these states."""
        for key, streak in self._streaks.items():
            streak.flaps, streak.on_trial = 0, False
            streak.state = states.get(key, State.PRIMARY.value)

    def note_send(
        self,
        message_id: str,
        entity: EntityPath,
        *,
        accepted: bool,
        took: float,
        accepted_by: AcceptedBy | None = None,
    ) -> None:
        """Judge that a producer sees no error while one namespace is well; and no long stall."""
        if accepted_by is AcceptedBy.BACKLOG:
            self._judge_diversion(entity)
        scenario, pair, now = self.scenario, self.scenario.pair, trio.current_time()
        promised = (
            scenario.one_well(now - took - BACK, now)
            and "busy" not in scenario.kinds
            and not scenario.only_told
            and not scenario.killed & {"gateway", "pause"}
            and scenario.clients_deadline is None
            and not scenario.parts.breaking
            and pair.on_unknown is OnUnknown.DIVERT
            and not self._tokens_fail
            # A key that is away needs the secondary, and its sends wait for one another.
            and not scenario.parts.ordered
        )
        share = min(pair.attempt_timeout, 0.4 * pair.send_timeout)
        sent = share + pair.suspect_wait + pair.attempt_timeout
        bound = scenario.front_wait + sent + SLACK
        in_time = took <= bound or len(scenario.troubled_namespaces) > 1
        if promised and not (accepted and in_time):
            self.broken.append(
                f"{message_id}: accepted={accepted} after {took:.3f} s, though one namespace was"
                " well"
            )

    def _judge_diversion(self, entity: EntityPath) -> None:
        """Judge that nothing is diverted for an entity that the primary answers for."""
        well = entity.key not in self.scenario.troubled_entities and not self.scenario.killed
        if well and self.scenario.latency < QUICK:
            self.broken.append(f"{entity} was diverted, and the primary answers for it")

    def note_replaced(self, process: str, well: bool) -> None:
        """Judge that no connection is replaced on which sends are answered."""
        self.seen["a connection was replaced"] += 1
        if well:
            self.broken.append(f"{process} replaced a connection on which sends are answered")

    def note_may_have_arrived(self, message_ids: Iterable[str]) -> None:
        """An attempt of the gateway was accepted, or nobody knows."""
        self._may_have_arrived.update(dict.fromkeys(message_ids, trio.current_time()))

    def note_unknown(self, message_ids: Iterable[str]) -> None:
        """
        Note that no answer told a producer the outcome of a send, which may still be under way.
        """
        self._unclear.update(message_ids)

    def note_failure(self, message_ids: Iterable[str], began: float) -> None:
        """
        Judge that no attempt may have arrived of a send that is told to have failed.

        Those of an earlier send, which nobody awaits any more, may.
        """
        for each in message_ids:
            possible = self._may_have_arrived.get(each, -1.0) >= began
            if possible and each not in self._unclear:
                self.broken.append(f"{each} was told not to be sent, and may have been")

    def note_refusal(self, error: BrokerError) -> None:
        """A send ended so. A token is refused where clocks are too far apart, and nowhere else."""
        if not isinstance(error, NotAuthorized):
            return
        if NO_LOGIN in self.scenario.kinds:
            return
        self.seen["a token was refused"] += 1
        if not self._tokens_fail:
            self.broken.append(f"a token was refused: {error}")

    @property
    def _tokens_fail(self) -> bool:
        client, front = self.clocks.of("client"), self.scenario.parts.front
        # Over AMQP a token lasts as long as it may, over HTTP each request has a new one.
        ahead = client.least_ahead if front is Front.AMQP else client.ahead
        has_tokens = front not in {None, Front.RABBITMQ}
        return has_tokens and self.clocks.of("gateway").ahead - ahead > TOO_FAR_BEHIND

    def note_consumed(
        self, namespace: str, call: Call, handled: Container[tuple[str, str]]
    ) -> None:
        """A listener completes no copy before a run of its handler has returned."""
        listening = self.scenario.parts.listener and namespace == "primary"
        done = isinstance(call.settlement, Complete) and call.outcome is None
        if listening and done and (call.entity.key, call.copy) not in handled:
            self.broken.append(f"{call.messages[0].message_id} completed before it was handled")

    def note_healed(self, entity: EntityPath, *, to_primary: bool) -> None:
        """All is well again, and somebody has sent to that entity."""
        if not to_primary:
            self.broken.append(f"{entity} has healed, and isn't sent to the primary")

    def note_left(self, messages: int) -> None:
        """
        All has been well for long, and consumers wait: so many the primary hasn't given to them.

        Where a clock was set, their date may be hours away.
        """
        if messages and not self.scenario.clock_steps:
            self.broken.append(f"the primary still has {messages} messages, and doesn't give them")

    def note_all_ended(self) -> None:
        """Judge the failovers that looked too early, and that no attempt under way explains."""
        self.broken += [text for _, _, text in self._early]

    def note_end(self) -> None:
        """
        Judge that a syphon went on soon after a freeze: its backoffs end with the outage. In a
        gateway it waits for the gateway's prober. A send from the last moments of the freeze may
        hang although the probe that asks about it is answered.
        """
        freeze = self.scenario.lone_freeze
        if freeze is None:
            return
        for (process, entity), began in self._resumed.items():
            sends = self._frozen.get((process, entity), ())
            asked = any(each + self.scenario.doubted + SLACK < freeze.end for each, _ in sends)
            waited = began - freeze.end
            if asked and not process.endswith("gateway") and waited > self.scenario.resumed:
                self.broken.append(f"{process} went on with {entity} {waited:.1f} s after a freeze")

    # --- when an entity may and must fail over

    def _note_attempt(self, call: Call, streak: _Streak) -> None:
        if call.outcome is None:
            self._note_accepted(call, streak)
            return
        now, interval = trio.current_time(), self.scenario.pair.failover_interval
        began = now - call.took
        late = began <= max(streak.changed, self._void_before)
        must_count = self._must_fail_over(call)
        streak.outage.record_failure(began, now, counts=must_count and not late)
        if must_count and not late:
            streak.outage.silence = interval + SLACK
        if streak.state not in PRIMARY or late:
            return  # it says nothing, or is late
        # Several batches of one attempt fail at the same moment.
        if streak.overdue and now > streak.last_failure:
            self.broken.append(f"{call.entity} failed for its interval and stays")
            streak.overdue = False
        if began - streak.last_failure >= interval:
            streak.failing_since = None
        if not must_count:
            return  # it may have begun a new streak, and carries none on
        if streak.failing_since is None:
            streak.failing_since = now
        streak.last_failure = now
        streak.overdue = now - streak.failing_since >= interval

    def _note_accepted(self, call: Call, streak: _Streak) -> None:
        streak.failing_since, streak.overdue = None, False
        if call.took < self.scenario.late:
            streak.outage.forget()
        else:  # it may count, or say nothing
            now = trio.current_time()
            streak.outage.record_failure(now - call.took, now, counts=False)

    def _must_fail_over(self, call: Call) -> bool:
        """Seen from outside, not every failure is an outage: it may be busy, full, or cancelled."""
        cut_off = call.outcome is Outcome.UNKNOWN and call.took < JUDGED
        told_apart = (
            self.scenario.kinds.isdisjoint({"busy", FULL})
            and self.scenario.clients_deadline is None
            and self.scenario.syphons > 0
        )
        return told_apart and not cut_off

    def _note_change(self, event: EntityStateChanged, streak: _Streak) -> None:
        self.seen[f"{event.before} -> {event.after}"] += 1
        if event.after == State.PRIMARY.value:
            self._unasked.pop(event.entity.key, None)
            self._judge_return(event, streak)
        elif event.before == State.PRIMARY.value:
            self._note_flap(streak)
        streak.before, streak.changed_before = streak.state, streak.changed
        streak.state, streak.changed, streak.overdue = event.after, trio.current_time(), False
        if event.after == State.SECONDARY.value:
            self._judge_failover(event, streak)
            # A failure and a success of one moment may be told in either order.
            streak.succeeded = [at for at in streak.succeeded if at == streak.changed]
        if event.after != State.SUSPECT.value:
            streak.failing_since = None
        self._end_streak(event, streak)
        back = event.before in BACKLOG and event.after == State.PRIMARY.value
        successes = len(streak.succeeded)
        if back and successes < self.scenario.pair.successes_to_return:
            self.broken.append(f"{event.entity} came back after {successes} successes")
        self._judge_cause(event)

    def _end_streak(self, event: EntityStateChanged, streak: _Streak) -> None:
        if (event.before, event.after) == (State.SUSPECT.value, State.PRIMARY.value):
            # Probes alone end no streak: the next failure goes on with it.
            streak.outage.silence = max(self.scenario.pair.failover_interval, WINDOW) + SLACK
        elif event.after != State.SUSPECT.value:
            streak.outage.forget()

    def _judge_cause(self, event: EntityStateChanged) -> None:
        """Something may have moved it."""
        moved = f"moved {event.entity} to {event.after}"
        if self.scenario.only_told:
            self.broken.append(f"{', '.join(sorted(self.scenario.kinds))} {moved}")
        if self.scenario.only_long_pauses and event.after == State.SECONDARY.value:
            self.broken.append(f"a pause {moved}")
        well = not self.scenario.killed and event.entity.key not in self.scenario.troubled_entities
        asked = event.reason == BESIDE or event.after == State.PRIMARY.value
        if well and not asked:
            self.broken.append(f"the fault of another entity {moved}")

    def _judge_return(self, event: EntityStateChanged, streak: _Streak) -> None:
        """
        Judge that an entity came back after enough successes, and after a longer proof if it
        flapped.
        """
        now, enough = trio.current_time(), self.scenario.pair.successes_to_return
        proved = now - streak.changed
        if event.before == State.HALF_OPEN.value and proved < streak.proof - SLACK:
            self.broken.append(f"{event.entity} flapped, and came back after {proved:.3f} s")
        by_asking = event.reason == "a probe was answered"
        if event.before == State.SUSPECT.value and by_asking and streak.probes < enough:
            self.broken.append(f"{event.entity} came back after {streak.probes} probes")
        streak.returned, streak.on_trial = now, by_asking or event.before in BACKLOG

    def _note_flap(self, streak: _Streak) -> None:
        """
        Count a flap if the entity failed again soon after its return; otherwise forget older flaps.
        """
        well = trio.current_time() - streak.returned
        if streak.on_trial and well < WINDOW:
            streak.flaps = min(5, streak.flaps + 1)
        elif streak.flaps:
            streak.flaps = max(0, streak.flaps - int(well // WINDOW))
        streak.on_trial = False

    def _judge_failover(self, event: EntityStateChanged, streak: _Streak) -> None:
        """
        Judge that the entity failed over only after the interval; a syphon inside sends as well.
        """
        now = trio.current_time()
        failing = max(0.0, now - streak.outage.since)
        early = failing < self.scenario.pair.failover_interval - SLACK
        if event.before in PRIMARY and self.scenario.syphons > 0 and early:
            text = f"{event.entity} failed over after {failing:.3f} s"
            self._early.append((event.entity.key, now, text))
