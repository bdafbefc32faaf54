"""
S14: a session has one receiver at a time, which completes each side's messages in their order.

A receiver that asked to complete a message after another one had accepted its session, and was told
that it is done, shared the session. The two sides number their messages by themselves.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gateway.checker.history import Run
from gateway.checker.judgements import Decision, Invariant, decide
from gateway.checker.operations import SessionAccepted, SessionServed


def sessions_kept(run: Run) -> Decision:
    """Decide S14 by what receivers of sessions were told."""
    accepts: dict[tuple[str, str], list[SessionAccepted]] = defaultdict(list)
    for accept in run.all(SessionAccepted):
        accepts[accept.entity, accept.session].append(accept)
    served: dict[tuple[str, str], list[SessionServed]] = defaultdict(list)
    for one in run.all(SessionServed):
        served[one.entity, one.session].append(one)
    judged, problems = 0, list[str]()
    for (entity, session), messages in served.items():
        judged += len(messages)
        found = [*_shared(accepts[entity, session], messages), *_out_of_order(messages)]
        problems += [f"{entity}, session {session!r}: {text}" for text in found]
    return decide(Invariant.S14, judged, problems)


def _shared(accepts: Sequence[SessionAccepted], served: Sequence[SessionServed]) -> Iterator[str]:
    """Each message of a receiver after whom another one had the session when it was settled."""
    by_time = sorted(accepts, key=lambda one: one.at)
    moments = [one.at for one in by_time]
    accepted = {one.receiver: one.at for one in by_time}
    for one in served:
        since = bisect_right(moments, accepted[one.receiver])
        later = by_time[since : bisect_left(moments, one.asked)]
        if later:
            yield (
                f"{one.receiver} completed {one.message_id} at {one.asked:.3f}, which"
                f" {later[0].receiver} has had since {later[0].at:.3f}"
            )


def _out_of_order(served: Sequence[SessionServed]) -> Iterator[str]:
    by_side: dict[int, list[SessionServed]] = defaultdict(list)
    for one in sorted(served, key=lambda one: one.asked):
        by_side[one.side].append(one)
    for side, messages in by_side.items():
        for before, after in pairwise(messages):
            if after.number <= before.number:
                yield (
                    f"{after.message_id}, number {after.number} of side {side}, was completed"
                    f" after {before.message_id}, number {before.number}"
                )
