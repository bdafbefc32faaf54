"""In which order messages come into a queue that nobody looks at meanwhile."""

from datetime import timedelta

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.domain.stored import to_date
from tests.brokers.stepped import SteppedBroker, done

SOURCE, TARGET = EntityPath("source"), EntityPath("target")
SECOND = 10**6


def test_what_was_due_comes_before_what_is_forwarded_later():
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
