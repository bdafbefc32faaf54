import pytest

from gateway.domain.health.reachability import SILENT, Comeback, Reachability


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


def test_a_namespace_is_lost_since_the_first_evidence(namespace):
    namespace.unconnected("refused", 5.0)
    namespace.unconnected("refused", 7.0)
    first = namespace.since
    namespace.answered(8.0)
    namespace.unconnected("refused", 9.0)

    assert (first, namespace.since) == (5.0, 9.0)


def test_three_silent_entities_are_several():
    assert SILENT == 3


def test_silence_is_evidence_when_it_is_that_of_several_entities(namespace):
    fall_silent(namespace, SILENT - 1)
    fall_silent(namespace, SILENT - 1)
    few = namespace.is_lost
    namespace.silent("another", 1.0, 3.0)

    assert not few
    assert namespace.is_lost


def test_one_silent_entity_speaks_against_all_others(namespace):
    namespace.silent("one", 0.0, 2.0)

    assert namespace.is_any_silent is True
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


def test_a_silent_entity_is_told_from_others(namespace):
    namespace.silent("one", 0.0, 2.0)

    assert namespace.is_silent("one")
    assert namespace.is_silent("another") is False


def test_only_an_answer_to_a_later_request_is_one_since_then(namespace):
    namespace.answered(5.0)

    assert [namespace.has_answered(since) for since in (4.9, 5.0)] == [True, False]


def test_a_request_that_began_with_an_answered_one_is_not_silent(namespace):
    namespace.answered(5.0)
    namespace.silent("one", 5.0, 7.0)
    namespace.silent("another", 5.1, 7.1)

    assert not namespace.is_silent("one")
    assert namespace.is_silent("another")


def test_a_lost_connection_takes_the_place_of_silence(namespace):
    namespace.silent("one", 0.0, 2.0)
    namespace.unconnected("refused", 5.0)

    assert not namespace.is_any_silent
    assert namespace.answered(5.0)


def test_each_silence_needs_an_answer_of_its_own(namespace):
    namespace.silent("one", 0.0, 2.0)
    namespace.silent("another", 2.0, 4.0)
    first = namespace.answered(2.0)
    left = (namespace.is_silent("one"), namespace.is_silent("another"))

    assert (first, left) == (False, (False, True))
    assert namespace.answered(4.0)


def test_a_namespace_that_was_found_has_no_reason_any_more(namespace):
    never = namespace.reason
    namespace.unconnected("refused", 5.0)
    namespace.answered(6.0)

    assert (never, namespace.reason, namespace.is_lost) == ("", "", False)


@pytest.mark.parametrize(
    ("worked", "had"), [(39.9, False), (40.0, True), (100.0, True), (100.1, False)]
)
def test_credentials_that_worked_in_the_minute_before_an_outage_may_be_good_again(worked, had):
    comeback = Comeback()
    comeback.worked(worked)

    assert comeback.had_credentials(100.0) is had


def test_an_outage_begins_with_its_first_failure_after_a_success():
    comeback, began = Comeback(), []
    comeback.failed(1.0)
    for worked, failed in ((0.5, 2.0), (1.0, 3.0), (1.1, 4.0)):
        comeback.worked(worked)
        comeback.failed(failed)
        began.append(comeback.began)
    comeback.forget()

    assert began == [1.0, 1.0, 4.0]
    assert comeback.began is None
