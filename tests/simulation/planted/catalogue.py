"""Planted bugs in the pairing, the store and the listener; those of other files with them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from gateway.brokers.embedded import schema
from gateway.brokers.embedded.committer import Committer
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import BrokerError, Busy, Outcome, OutcomeUnknown, Unavailable
from gateway.domain.failover import FailoverRule
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.listener.work import Work
from gateway.pairing import backlog as backlog_sender
from gateway.pairing import primary as primary_sender
from gateway.pairing import states as states
from gateway.pairing.backlog import BacklogSender
from gateway.pairing.broker import PairedBroker
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import PairOptions
from gateway.pairing.primary import PrimarySender
from gateway.pairing.prober import Prober
from gateway.pairing.sending import Sending
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon import mover
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.mover import Mover
from gateway.ports import Broker
from tests.harness.clocks import seconds
from tests.simulation.disk import ENDED
from tests.simulation.planted.clocks import MUTANTS as CLOCK_MUTANTS
from tests.simulation.planted.fronts import MUTANTS as FRONT_MUTANTS
from tests.simulation.planted.late import MUTANTS as LATE_MUTANTS
from tests.simulation.planted.patch import Function, Mutant
from tests.simulation.planted.states import MUTANTS as STATE_MUTANTS
from tests.simulation.scenario import ENTITIES


def ack_early(right: Function) -> Function:
    async def send_diverting(
        self: PairedBroker, entity: EntityPath, messages: Sequence[Message]
    ) -> AcceptedBy:
        async def later() -> None:
            await trio.lowlevel.checkpoint()
            with suppress(BrokerError):
                await right(self, entity, messages)

        trio.lowlevel.spawn_system_task(later)
        await trio.lowlevel.checkpoint()
        return AcceptedBy.PRIMARY

    return send_diverting


def complete_first(right: Function) -> Function:
    async def send(self: Mover, entity: EntityPath, chunk: Sequence[Any], trial: Any) -> Any:
        for message in chunk:
            await self.complete(message.delivery, message.copy)
        return await right(self, entity, chunk, trial)

    return send


def unknown_is_not_sent(right: Function) -> Function:
    async def send_in_time(*arguments: Any) -> None:
        try:
            await right(*arguments)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error

    return send_in_time


def unknown_is_accepted(right: Function) -> Function:
    async def send_in_time(*arguments: Any) -> None:
        await trio.lowlevel.checkpoint()
        with suppress(OutcomeUnknown):
            await right(*arguments)

    return send_in_time


def forget_the_taint(right: Function) -> Function:
    def verdict(self: Sending, error: BrokerError) -> BrokerError:
        return error

    return verdict


def restart_the_time_to_live(right: Function) -> Function:
    def left(message: BacklogMessage, now: Any, options: Any) -> Any:
        return message.unwrapped.time_to_live

    return left


def come_back_without_a_probe(right: Function) -> Function:
    async def probe(self: Prober, entity: EntityPath) -> bool:
        await trio.lowlevel.checkpoint()
        self.states.probed(entity)
        return True

    return probe


def probe_with_a_message(right: Function) -> Function:
    async def probe(self: Prober, entity: EntityPath) -> bool:
        with suppress(BrokerError):
            await self.primary.send(entity, [Message(message_id="ping")])
        return bool(await right(self, entity))

    return probe


def busy_is_an_outage(right: Function) -> Function:
    def throttled(self: PrimarySender, sending: Sending, error: Busy) -> bool:
        self.states.failed(self.states.begin(sending.entity), error)
        sending.failed(error)
        return True

    return throttled


def divert_with_a_new_id(right: Function) -> Function:
    async def attempt(
        self: BacklogSender, sending: Sending, queue: EntityPath, **named: Any
    ) -> Any:
        sending.messages = [
            attrs.evolve(message, message_id=self.new_id()) for message in sending.messages
        ]
        return await right(self, sending, queue, **named)

    return attempt


def wrap_without(**absent: Any) -> Callable[[Function], Function]:
    def replace(right: Function) -> Function:
        def wrap(self: Envelope, message: Message, *arguments: Any, **named: Any) -> Any:
            return right(self, attrs.evolve(message, **absent), *arguments, **named)

        return wrap

    return replace


def unwrap_to_one_entity(right: Function) -> Function:
    def unwrap(self: Envelope, message: Message) -> Any:
        return attrs.evolve(right(self, message), entity=ENTITIES[0])

    return unwrap


def half_a_batch_is_not_sent(right: Function) -> Function:
    async def send_in_time(
        broker: Broker, entity: EntityPath, messages: Sequence[Message], *arguments: Any
    ) -> None:
        await trio.lowlevel.checkpoint()
        for message in messages:
            await right(broker, entity, [message], *arguments)

    return send_in_time


def never_try_the_last_way(right: Function) -> Function:
    async def send_in_time(
        broker: Broker,
        entity: EntityPath,
        messages: Sequence[Message],
        seconds: float,
        has_other_way: bool = False,
    ) -> None:
        await right(broker, entity, messages, seconds, True)

    return send_in_time


def send_what_was_accepted_again(right: Function) -> Function:
    async def send_in_time(*arguments: Any) -> None:
        await right(*arguments)
        with suppress(BrokerError):
            await right(*arguments)

    return send_in_time


def dead_letter_whatever_fails(right: Function) -> Function:
    def is_final(self: Mover, entity: EntityPath, error: BrokerError) -> bool:
        return True

    return is_final


def syphon_takes_unknown_for_accepted(right: Function) -> Function:
    async def send(*arguments: Any) -> Any:
        error = await right(*arguments)
        return None if error is not None and error.outcome is Outcome.UNKNOWN else error

    return send


def nothing_is_a_pause(right: Function) -> Function:
    def notice_pause(self: EntityStates) -> None:
        return

    return notice_pause


def fail_over_at_once(right: Function) -> Function:
    def rule_for(entity: EntityPath, options: PairOptions) -> FailoverRule:
        return FailoverRule(interval=0.0, successes_to_return=options.successes_to_return)

    return rule_for


def one_failure_is_everybodys(right: Function) -> Function:
    def failed(self: EntityStates, attempt: Attempt, error: BrokerError) -> None:
        right(self, attempt, error)
        for entity in ENTITIES:
            right(self, self.begin(entity), error)

    return failed


def leave_the_client_alone(right: Function) -> Function:
    def diverts(*arguments: Any) -> bool:
        return False

    return diverts


def commit_without_a_sync(right: Function) -> Function:
    def connect(*arguments: Any) -> Any:
        connection = right(*arguments)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    return connect


def go_on_after_an_error_of_the_disk(right: Function) -> Function:
    def fail(self: Committer, steps: Sequence[Any], why: str) -> None:
        if why == ENDED:
            right(self, steps, why)

    return fail


def complete_before_the_handler(right: Function) -> Function:
    async def handle(self: Work[Any], item: Any) -> Any:
        with suppress(BrokerError):
            await self.session.settle(self.delivery, Complete())
        return await right(self, item)

    return handle


def interval_on_the_wall_clock(right: Function) -> Function:
    offsets: dict[Any, float] = {}

    def note(self: EntityStates, record: Any, *arguments: Any, **named: Any) -> None:
        offset = seconds(self.clock()) - trio.current_time()
        step = offset - offsets.get(record, offset)
        offsets[record] = offset
        if record.failover.failing_since is not None:
            record.failover = attrs.evolve(
                record.failover,
                failing_since=record.failover.failing_since - step,
                last_failure=record.failover.last_failure - step,
            )
        right(self, record, *arguments, **named)

    return note


def pulse_on_the_wall_clock(right: Function) -> Function:
    offsets: dict[Any, float] = {}

    def notice_pause(self: EntityStates) -> None:
        offset = seconds(self.clock()) - trio.current_time()
        if self._last_heartbeat is not None:
            self._last_heartbeat -= offset - offsets.get(self, offset)
        offsets[self] = offset
        right(self)

    return notice_pause


MUTANTS: Final = (
    Mutant("the answer goes out before a broker has it", PairedBroker, "send_diverting", ack_early),
    Mutant("the syphon completes before the primary accepted", Mover, "_send", complete_first),
    Mutant(
        "a time-out is a failure",
        (primary_sender, backlog_sender),
        "send_in_time",
        unknown_is_not_sent,
    ),
    Mutant("no answer is success", backlog_sender, "send_in_time", unknown_is_accepted),
    Mutant("the taint is forgotten", Sending, "verdict", forget_the_taint),
    Mutant("the time to live starts again", mover, "_left", restart_the_time_to_live),
    Mutant("back without a probe", Prober, "_probe", come_back_without_a_probe),
    Mutant("probes are messages", Prober, "_probe", probe_with_a_message),
    Mutant("busy is an outage", PrimarySender, "_throttled_for_too_long", busy_is_an_outage),
    Mutant("the backlog gets a new message id", BacklogSender, "_attempt", divert_with_a_new_id),
    Mutant("the session is dropped", Envelope, "wrap", wrap_without(session_id=None)),
    Mutant("the schedule is dropped", Envelope, "wrap", wrap_without(scheduled=None)),
    Mutant("the time to live is dropped", Envelope, "wrap", wrap_without(time_to_live=None)),
    Mutant("the syphon mixes up entities", Envelope, "unwrap", unwrap_to_one_entity),
    Mutant("half a batch is not sent", primary_sender, "send_in_time", half_a_batch_is_not_sent),
    Mutant("the last way fails fast", primary_sender, "send_in_time", never_try_the_last_way),
    Mutant(
        "accepted, and sent again", primary_sender, "send_in_time", send_what_was_accepted_again
    ),
    Mutant("a transient error dead-letters", Mover, "_is_final", dead_letter_whatever_fails),
    Mutant("the syphon believes", Mover, "_send", syphon_takes_unknown_for_accepted),
    Mutant("a pause counts", EntityStates, "_notice_pause", nothing_is_a_pause),
    Mutant("the interval is ignored", states, "rule_for", fail_over_at_once),
    Mutant("all entities fail over together", EntityStates, "failed", one_failure_is_everybodys),
    *FRONT_MUTANTS,
    Mutant("nothing is diverted at once", PrimarySender, "_diverts", leave_the_client_alone),
    Mutant("the store answers before the sync", schema, "connect", commit_without_a_sync),
    Mutant(
        "a failed commit is answered as done", Committer, "fail", go_on_after_an_error_of_the_disk
    ),
    Mutant("completed before the handler returned", Work, "_handle", complete_before_the_handler),
    Mutant("the interval is on the wall clock", EntityStates, "_note", interval_on_the_wall_clock),
    *CLOCK_MUTANTS,
    Mutant(
        "the pulse is on the wall clock", EntityStates, "_notice_pause", pulse_on_the_wall_clock
    ),
    *LATE_MUTANTS,
    *STATE_MUTANTS,
)
