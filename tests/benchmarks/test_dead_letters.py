"""The judge of the benchmark of dead letters."""

import pytest

from benchmarks.dead_letters import WrongCount, judge
from gateway.domain.message import Message


def message(number: int, *, fixed: bool | None = None) -> Message:
    is_fixed = number % 2 == 0 if fixed is None else fixed
    return Message(body=b"%d" % number, properties={"fixed": "yes"} if is_fixed else {})


def test_each_message_once_is_right() -> None:
    judge([message(2), message(0), message(1)], 3, [])


def test_a_message_that_came_twice_is_right_once_it_was_told() -> None:
    found = [message(0), message(0), message(1)]
    judge(found, 2, ["m0"])
    with pytest.raises(WrongCount, match="twice without being told"):
        judge(found, 2, ["m1"])


def test_a_lost_message_is_wrong() -> None:
    with pytest.raises(WrongCount, match=r"lost: \[\] expected, found \[1\]"):
        judge([message(0)], 2, [])


@pytest.mark.parametrize("changed", [message(1, fixed=True), message(0, fixed=False)])
def test_a_change_of_the_wrong_messages_is_wrong(changed: Message) -> None:
    other = message(1 - int(changed.body))
    with pytest.raises(WrongCount, match="change of others"):
        judge([changed, other], 2, [])
