"""The table of copy states, against a naive model of one copy and its lock."""

from itertools import product

import attrs
import pytest

from gateway.domain.copies import ON_DELIVERY, TRANSITIONS, Copies, CopyEvent, CopyState, CopyStep
from tests.harness.retained import entries

LONGEST = 5  # events of a history: all of them are tried
COPY = ("queue", 1, "id")
OTHERS = [("queue", number, "id") for number in range(2, 5)]
SENDS = (CopyEvent.DELIVERED, CopyEvent.HANDED_OVER, CopyEvent.ACCEPTED)


@attrs.define
class Model:
    """A syphon with one copy: claimed, being sent, accepted, or kept as a handle."""

    claimed: bool = False
    sends: bool = False
    accepted: bool = False
    has_handle: bool = False

    def deliver(self) -> CopyStep:
        if self.accepted:
            return CopyStep.COMPLETE
        if self.claimed:
            return CopyStep.KEEP
        self.claimed, self.has_handle = True, False
        return CopyStep.MOVE

    def note(self, event: CopyEvent) -> None:
        waits = self.claimed and not self.sends
        match event:
            case CopyEvent.HANDED_OVER:
                self.sends = self.claimed
            case CopyEvent.ACCEPTED if self.sends:
                self.accepted, self.claimed, self.sends = True, False, False
            case CopyEvent.FAILED:
                self.sends = False
            case CopyEvent.SUSPENDED if waits:
                self.claimed, self.has_handle = False, True
            case CopyEvent.DEAD_LETTERED if waits:
                self.claimed = False
            case CopyEvent.RELEASED:
                self.has_handle = False
            case CopyEvent.COMPLETED:
                self.accepted = False

    @property
    def state(self) -> CopyState:
        if self.accepted:
            return CopyState.SENT
        if self.claimed:
            return CopyState.SENDING if self.sends else CopyState.RECEIVED
        return CopyState.SUSPENDED if self.has_handle else CopyState.NEW


def test_the_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(ON_DELIVERY) == set(CopyState)
    for row in TRANSITIONS.values():
        assert set(row) == set(CopyEvent)


@pytest.mark.parametrize("first", CopyEvent, ids=str)
def test_all_short_histories_end_as_in_the_naive_model(first: CopyEvent) -> None:
    for rest in product(CopyEvent, repeat=LONGEST - 1):
        copies, model = Copies(), Model()
        for event in (first, *rest):
            if event is CopyEvent.DELIVERED:
                assert copies.deliver(COPY) is model.deliver()
            else:
                copies.advance(event, (COPY,))
                model.note(event)
            assert copies.state_of(COPY) is model.state


@pytest.mark.parametrize("first", CopyEvent, ids=str)
def test_a_message_that_the_primary_has_is_never_moved_before_its_completion_is_confirmed(
    first: CopyEvent,
) -> None:
    for rest in product(CopyEvent, repeat=LONGEST - 1):
        copies, is_sent = Copies(), False
        for event in (*SENDS, first, *rest):
            is_sent = (is_sent or event is CopyEvent.ACCEPTED) and event is not CopyEvent.COMPLETED
            step = copies.deliver(COPY) if event is CopyEvent.DELIVERED else None
            copies.advance(event, () if step is not None else (COPY,))
            if event is CopyEvent.COMPLETED:
                break
            assert not is_sent or step in {None, CopyStep.COMPLETE}


def test_a_copy_on_its_way_is_sent_once_however_often_it_is_delivered() -> None:
    copies = Copies()

    steps = [copies.deliver(COPY), copies.deliver(COPY)]
    copies.advance(CopyEvent.HANDED_OVER, (COPY,))
    steps.append(copies.deliver(COPY))

    assert steps == [CopyStep.MOVE, CopyStep.KEEP, CopyStep.KEEP]


def test_a_finished_copy_needs_no_memory() -> None:
    copies = Copies()
    for end in ((CopyEvent.DEAD_LETTERED,), (CopyEvent.SUSPENDED, CopyEvent.RELEASED)):
        for event in (CopyEvent.DELIVERED, *end):
            copies.advance(event, OTHERS)
    for event in (*SENDS, CopyEvent.COMPLETED):
        copies.advance(event, OTHERS)

    assert entries(copies) == 0


def test_sent_copies_are_bounded_and_the_oldest_is_forgotten() -> None:
    copies = Copies(max_sent=2)
    for event in SENDS:
        copies.advance(event, OTHERS)

    sent = CopyState.SENT
    assert [copies.state_of(copy) for copy in OTHERS] == [CopyState.NEW, sent, sent]


def test_a_closed_receiver_leaves_only_what_the_primary_has() -> None:
    copies, elsewhere = Copies(), ("other", 1, "id")
    for event in SENDS:
        copies.advance(event, (COPY,))
    copies.advance(CopyEvent.DELIVERED, [*OTHERS, elsewhere])
    copies.advance(CopyEvent.HANDED_OVER, OTHERS[:1])
    copies.advance(CopyEvent.SUSPENDED, OTHERS[1:2])

    copies.forget_unsent("queue")

    assert copies.state_of(COPY) is CopyState.SENT
    assert {copies.state_of(copy) for copy in OTHERS} == {CopyState.NEW}
    assert copies.state_of(elsewhere) is CopyState.RECEIVED


def test_copies_are_counted_by_their_state() -> None:
    copies = Copies()
    for event in SENDS:
        copies.advance(event, (COPY,))
    copies.advance(CopyEvent.DELIVERED, OTHERS)
    copies.advance(CopyEvent.SUSPENDED, OTHERS[1:2])

    assert copies.counts() == {
        CopyState.RECEIVED: len(OTHERS) - 1,
        CopyState.SENDING: 0,
        CopyState.SENT: 1,
        CopyState.SUSPENDED: 1,
    }
