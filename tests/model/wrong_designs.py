"""Parts of the tests of wrong designs that other tests need, too."""

from tests.model.protocol import Design, Step

# A wrong design, the invariant that it breaks, and the shortest way to that.
WRONG = {
    "answers before a broker has it": (
        Design(acks_early=True),
        "S1",
        [Step.INVOKE, Step.ANSWER_ACKED],
    ),
    "says not sent where nobody knows": (
        Design(unknown_is_not_sent=True),
        "S3",
        [Step.INVOKE, Step.ASK_PRIMARY, Step.APPLY, Step.PRIMARY_UNKNOWN, Step.ANSWER_FAILED],
    ),
    "forgets that an earlier attempt had no answer": (
        Design(forgets_the_taint=True),
        "S3",
        [
            *(Step.INVOKE, Step.ASK_PRIMARY, Step.APPLY, Step.PRIMARY_UNKNOWN),
            *(Step.ASK_PRIMARY, Step.PRIMARY_REFUSES, Step.ANSWER_FAILED),
        ],
    ),
    "settles before the primary has it": (
        Design(settles_first=True),
        "S8",
        [Step.INVOKE, Step.ASK_BACKLOG, Step.APPLY, Step.LOCK, Step.SETTLE],
    ),
    "takes no answer for success": (
        Design(unknown_is_accepted=True),
        "S8",
        [
            *(Step.INVOKE, Step.ASK_BACKLOG, Step.APPLY, Step.LOCK, Step.TRANSFER),
            *(Step.TRANSFER_UNKNOWN, Step.SETTLE),
        ],
    ),
    "sends again at once what is only slow": (
        Design(sends_again_at_once=True),
        "S6",
        [
            *(Step.INVOKE, Step.ASK_BACKLOG, Step.APPLY, Step.LOCK, Step.TRANSFER, Step.TRANSFER),
            *(Step.LATE_ARRIVES, Step.APPLY),
        ],
    ),
    "settles what has the number of a lost lock": (
        Design(settles_by_number=True),
        "S8",
        [
            *(Step.INVOKE, Step.ASK_BACKLOG, Step.APPLY) * 2,
            *(Step.LOCK, Step.TRANSFER, Step.APPLY, Step.TRANSFER_ACCEPTED, Step.LOCK_EXPIRES),
            *(Step.SETTLE_REFUSED, Step.LOCK, Step.SETTLE),
        ],
    ),
    "remembers a copy without its message": (
        Design(remembers_numbers=True),
        "S8",
        [
            *(Step.INVOKE, Step.ASK_BACKLOG, Step.APPLY) * 2,
            *(Step.LOCK, Step.TRANSFER, Step.APPLY, Step.TRANSFER_ACCEPTED, Step.SETTLE_UNKNOWN),
            *(Step.LOCK, Step.SETTLE),
        ],
    ),
    "never gives a copy back": (Design(keeps_what_is_refused=True), "never drained", None),
}
