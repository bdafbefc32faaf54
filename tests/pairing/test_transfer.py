"""What a syphon remembers of its transfers."""

from gateway.pairing import transfer as module
from gateway.pairing.transfer import Transferred

COPIES = [("queue", number, "id") for number in range(3)]


def test_a_copy_is_remembered_until_its_completion_is_confirmed():
    transferred = Transferred()
    transferred.remember(COPIES[0])
    before = COPIES[0] in transferred

    transferred.forget(COPIES[0])
    transferred.forget(COPIES[1])

    assert before
    assert COPIES[0] not in transferred


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(module, "MAX_TRANSFERRED", 2)
    transferred = Transferred()
    for copy in COPIES:
        transferred.remember(copy)

    assert [copy in transferred for copy in COPIES] == [False, True, True]
