"""Messages arrive in their order in a queue without receivers."""

from datetime import timedelta

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.store.engine.queue_content import SWEEP
from tests.brokers.stepped import SteppedBroker, SteppedEmbedded, done

SOURCE, TARGET = EntityPath("source"), EntityPath("target")
SECOND = 10**6


def test_a_due_message_comes_before_one_that_is_forwarded_later():
    broker = SteppedBroker()
    done(broker.create_queue(TARGET, QueueProperties()))
    done(broker.create_queue(SOURCE, QueueProperties(forward_to="target")))
    due = to_date(broker.watch.wall) + timedelta(seconds=1)
    done(broker.send(TARGET, [Message(message_id="due", scheduled=due)]))
    broker.wait(broker.watch.wall + 2 * SECOND)
    done(broker.send(SOURCE, [Message(message_id="forwarded")]))
    done(broker.inspect(TARGET))

    shown = done(broker.peek(TARGET, limit=10))
    assert [each.message.message_id for each in shown] == ["due", "forwarded"]


def test_as_many_as_one_look_moves_are_no_reason_to_look_for_ever():
    broker = SteppedBroker()
    done(broker.create_queue(TARGET, QueueProperties()))
    done(broker.create_queue(SOURCE, QueueProperties(forward_to="target")))
    due = to_date(broker.watch.wall) + timedelta(seconds=1)
    done(broker.schedule(SOURCE, [Message(scheduled=due)] * SWEEP))

    broker.wait(broker.watch.wall + 60 * SECOND)

    assert done(broker.inspect(TARGET)).active == SWEEP
    assert broker.due is None


def test_the_number_of_a_duplicate_is_nobody_elses_after_a_restart(tmp_path):
    broker = SteppedEmbedded(tmp_path)
    done(broker.create_queue(TARGET, QueueProperties(requires_duplicate_detection=True)))
    later = to_date(broker.watch.wall) + timedelta(hours=1)
    numbers = [
        done(broker.schedule(TARGET, [Message(message_id="one", scheduled=later)]))[0]
        for _ in range(2)
    ]
    broker.restart()
    numbers += done(broker.schedule(TARGET, [Message(message_id="two", scheduled=later)]))
    broker.close()

    assert len(set(numbers)) == 3
