"""The benchmark that runs a program with and without the gateway: its audit of messages."""

from collections import Counter

from benchmarks.with_and_without import row_of


def test_a_message_that_was_accepted_and_is_nowhere_is_lost() -> None:
    result = {"accepted": ["a", "b", "c"], "failed": ["Gone"], "longest": 2.3}

    row = row_of("Python", "killed", "directly", result, Counter({"a": 1, "b": 2, "unknown": 1}))

    assert (row.sends, row.exceptions, row.lost, row.twice, row.longest) == (4, 1, 1, 1, 2.3)
