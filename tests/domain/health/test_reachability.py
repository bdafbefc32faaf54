import pytest

from gateway.domain.health.reachability import SILENT, Reachability


@pytest.fixture
def namespace():
    return Reachability()


def fall_silent(namespace, entities=SILENT, began=0.0):
    for number in range(entities):
        namespace.silent(f"entity-{number}", began, began + 2.0)


def test_a_connection_that_cannot_be_made_is_evidence_at_once(namespace):
    namespace.unconnected("refused", 5.0)

    assert namespace.is_lost
    assert namespace.reason == "refused"


def test_silence_is_evidence_when_it_is_that_of_several_entities(namespace):
    fall_silent(namespace, SILENT - 1)
    fall_silent(namespace, SILENT - 1)
    few = namespace.is_lost
    namespace.silent("another", 1.0, 3.0)

    assert not few
    assert namespace.is_lost


def test_one_silent_entity_speaks_against_all_others(namespace):
    namespace.silent("one", 0.0, 2.0)

    assert namespace.is_silent_beside("another")
    assert not namespace.is_silent_beside("one")
    assert not namespace.is_lost


@pytest.mark.parametrize(("began", "ends"), [(1.9, False), (2.0, True)])
def test_the_answer_that_ends_a_silence_began_after_it(namespace, began, ends):
    namespace.silent("one", 0.0, 2.0)

    assert namespace.answered(began) is ends
    assert namespace.is_silent_beside("another") is not ends


def test_a_silence_says_nothing_if_a_later_request_was_answered(namespace):
    namespace.answered(1.0)
    namespace.silent("one", 0.0, 2.0)

    assert not namespace.is_silent_beside("another")


def test_an_answer_to_a_request_that_began_later_ends_the_silence(namespace):
    fall_silent(namespace, SILENT - 1)
    namespace.answered(2.0)
    namespace.silent("another", 1.0, 3.0)
    namespace.silent("a third", 2.5, 4.5)

    assert not namespace.is_lost


def test_an_answer_to_a_request_from_before_it_fell_silent_ends_nothing(namespace):
    fall_silent(namespace, SILENT - 1, began=1.0)
    namespace.answered(0.5)
    namespace.silent("another", 1.0, 3.0)

    assert namespace.is_lost


@pytest.mark.parametrize(("began", "found"), [(4.9, False), (5.0, True), (6.0, True)])
def test_the_answer_that_clears_it_began_after_the_evidence(namespace, began, found):
    namespace.unconnected("refused", 5.0)

    assert namespace.answered(began) is found
    assert namespace.is_lost is not found


def test_newer_evidence_needs_a_newer_answer(namespace):
    namespace.unconnected("refused", 5.0)
    namespace.silent("one", 6.0, 8.0)

    assert not namespace.answered(7.0)
    assert namespace.answered(9.0)


def test_a_forgotten_silence_must_be_found_again(namespace):
    fall_silent(namespace, SILENT - 1)
    namespace.forget()
    namespace.silent("another", 0.0, 2.0)

    assert not namespace.is_lost
