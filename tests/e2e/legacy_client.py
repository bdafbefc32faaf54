"""
azure-servicebus 0.21.1 talks to a Pairgate; prints one JSON object.

Runs in `.venv-legacy`, as a process of its own. Usage: legacy_client.py PORT KEY PART...
"""

import json
import sys
from datetime import datetime

from azure.common import AzureConflictHttpError, AzureHttpError, AzureMissingResourceHttpError
from azure.servicebus import Message, Queue, Rule, ServiceBusService, Subscription, Topic
from azure.servicebus.constants import DEFAULT_RULE_NAME
from azure.servicebus.models import AzureServiceBusResourceNotFound

PORT, KEY, PARTS = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


def client(key=KEY):
    service = ServiceBusService(
        "localhost",
        host_base=f":{PORT}",
        shared_access_key_name="RootManageSharedAccessKey",
        shared_access_key_value=key,
    )
    service._httpclient.protocol = "http"  # the library has no argument for the address
    return service


def error_of(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except AzureServiceBusResourceNotFound:
        return "not found"
    except (AzureConflictHttpError, AzureMissingResourceHttpError, AzureHttpError) as error:
        return [type(error).__name__, error.status_code]
    return None


def management(service):
    queue = Queue(max_delivery_count=3, lock_duration="PT30S")
    return {
        "created": service.create_queue("ut/queue", queue, fail_on_exist=True),
        "created again": service.create_queue("ut/queue"),
        "exists": error_of(service.create_queue, "ut/queue", fail_on_exist=True),
        "told": [
            getattr(service.get_queue("ut/queue"), name)
            for name in ("name", "max_delivery_count", "lock_duration", "requires_session")
        ],
        "listed": [queue.name for queue in service.list_queues()],
        "missing": error_of(service.get_queue, "missing"),
        "missing to delete": error_of(service.delete_queue, "missing", fail_not_exist=True),
    }


def messages(service):
    message = Message(
        "käse".encode(),
        type="text/plain",
        custom_properties={
            "text": 'a "quoted" one',
            "int": 42,
            "float": 1.5,
            "yes": True,
            "no": False,
            "due": datetime(2026, 1, 2, 3, 4, 5),
        },
        broker_properties={"Label": "M1", "TimeToLive": 60, "MessageId": "m-1"},
    )
    service.send_queue_message("ut/queue", message)
    first = service.receive_queue_message("ut/queue", peek_lock=True, timeout=5)
    first.unlock()
    second = service.receive_queue_message("ut/queue", peek_lock=True, timeout=5)
    second.renew_lock()
    second.delete()
    return {
        "body": first.body.decode(),
        "type": first.type,
        "properties": {
            name: first.custom_properties[name] for name in ("text", "int", "float", "yes", "no")
        },
        "due": str(first.custom_properties["due"]),
        "broker": {
            name: first.broker_properties[name]
            for name in ("Label", "TimeToLive", "MessageId", "DeliveryCount")
        },
        "deliveries": second.broker_properties["DeliveryCount"],
        "deleted twice": error_of(second.delete),
    }


def batch(service):
    service.send_queue_message_batch(
        "ut/queue", [Message(f"b{n}", custom_properties={"n": n}) for n in range(3)]
    )
    received = [
        service.receive_queue_message("ut/queue", peek_lock=False, timeout=5) for _ in range(3)
    ]
    empty = service.receive_queue_message("ut/queue", peek_lock=False, timeout=1)
    return {
        "bodies": [message.body.decode() for message in received],
        "properties": [message.custom_properties["n"] for message in received],
        "empty": empty.body,
        "locked": error_of(received[0].delete) if received[0].location else None,
    }


def dead_letters(service):
    service.send_queue_message("ut/queue", Message(b"poison"))
    for _ in range(3):
        service.receive_queue_message("ut/queue", timeout=5).unlock()
    name = ServiceBusService.format_dead_letter_queue_name("ut/queue")
    dead = service.receive_queue_message(name, timeout=5)
    dead.delete()
    return {"body": dead.body.decode(), "reason": dead.custom_properties["deadletterreason"]}


def refusals(service):
    return {
        "send to missing": error_of(service.send_queue_message, "missing", Message(b"x")),
        "receive from missing": error_of(service.receive_queue_message, "missing", timeout=1),
        "bad name": error_of(service.send_queue_message, "ünicode", Message(b"x")),
        "wrong key": error_of(client("wrong").send_queue_message, "ut/queue", Message(b"x")),
        "too large": error_of(service.send_queue_message, "ut/queue", Message(b"x" * 2**21)),
    }


def deletion(service):
    return {
        "deleted": service.delete_queue("ut/queue"),
        "left": [queue.name for queue in service.list_queues()],
    }


def topics(service):
    topic = Topic(default_message_time_to_live="PT1H", max_size_in_megabytes=2048)
    results = {
        "created": service.create_topic("ut/topic", topic, fail_on_exist=True),
        "created again": service.create_topic("ut/topic"),
        "exists": error_of(service.create_topic, "ut/topic", fail_on_exist=True),
        "told": [
            getattr(service.get_topic("ut/topic"), name)
            for name in ("name", "default_message_time_to_live", "max_size_in_megabytes")
        ],
        "listed": [topic.name for topic in service.list_topics()],
        "missing": error_of(service.get_topic, "missing"),
        "missing to delete": error_of(service.delete_topic, "missing", fail_not_exist=True),
        "deleted": service.delete_topic("ut/topic", fail_not_exist=True),
    }
    return results | {"left": [topic.name for topic in service.list_topics()]}


def subscriptions(service):
    service.create_topic("ut/topic")
    wish = Subscription(max_delivery_count=3, lock_duration="PT30S")
    place = ("ut/topic", "sub")
    results = {
        "created": service.create_subscription(*place, wish, fail_on_exist=True),
        "exists": error_of(service.create_subscription, *place, fail_on_exist=True),
        "told": [
            getattr(service.get_subscription(*place), name)
            for name in ("name", "max_delivery_count", "lock_duration", "requires_session")
        ],
        "listed": [found.name for found in service.list_subscriptions("ut/topic")],
        "missing": error_of(service.get_subscription, "ut/topic", "missing"),
        "of no topic": error_of(service.create_subscription, "missing", "sub", fail_on_exist=True),
    }
    correlation = Rule("CorrelationFilter", "c")
    sql = Rule("SqlFilter", "a > 1 AND b = '<'")
    results["rules"] = {
        "created": [
            service.create_rule(*place, name, rule, fail_on_exist=True)
            for name, rule in (("correlation", correlation), ("sql", sql))
        ],
        "exists": error_of(service.create_rule, *place, "sql", sql, fail_on_exist=True),
        "told": [
            getattr(service.get_rule(*place, "sql"), name)
            for name in (
                "name",
                "filter_type",
                "filter_expression",
                "action_type",
                "action_expression",
            )
        ],
        "listed": sorted([rule.name, rule.filter_type] for rule in service.list_rules(*place)),
        "missing": error_of(service.get_rule, *place, "missing"),
        "deleted": service.delete_rule(*place, DEFAULT_RULE_NAME, fail_not_exist=True),
        "deleted again": error_of(
            service.delete_rule, *place, DEFAULT_RULE_NAME, fail_not_exist=True
        ),
        "wrong": error_of(
            service.create_rule, *place, "w", Rule("SqlFilter", "a >"), fail_on_exist=True
        ),
        # The client's Rule sends the type of an action as the action's expression, too.
        "action": error_of(
            service.create_rule,
            *place,
            "w",
            Rule("SqlFilter", "a > 1", "SqlRuleAction", "SET c = 1"),
            fail_on_exist=True,
        ),
    }
    results["deleted"] = service.delete_subscription(*place, fail_not_exist=True)
    results["left"] = [found.name for found in service.list_subscriptions("ut/topic")]
    service.delete_topic("ut/topic")
    return results


def make_news(service):
    """A topic with a subscription for all messages, and one for those where n > 1."""
    service.create_topic("eu/news", fail_on_exist=True)
    wish = Subscription(max_delivery_count=2)
    for name in ("all", "many"):
        service.create_subscription("eu/news", name, wish, fail_on_exist=True)
    service.create_rule("eu/news", "many", "n", Rule("SqlFilter", "n > 1"), fail_on_exist=True)
    return service.delete_rule("eu/news", "many", DEFAULT_RULE_NAME, fail_not_exist=True)


def numbered(number):
    return Message(f"news {number}".encode(), custom_properties={"n": number})


def drained(service, name):
    found = []
    while (message := taken(service, name)).body is not None:
        found.append([message.body.decode(), message.custom_properties["n"]])
    return sorted(found)


def taken(service, name, **named):
    return service.receive_subscription_message("eu/news", name, timeout=1, **named)


def topic_messages(service):
    for number in (1, 2, 3):
        service.send_topic_message("eu/news", numbered(number))
    first = taken(service, "many", peek_lock=True)
    first.unlock()
    second = taken(service, "many", peek_lock=True)
    second.renew_lock()
    second.delete()
    taken(service, "many", peek_lock=True).unlock()
    taken(service, "many", peek_lock=True).unlock()
    dead = ServiceBusService.format_dead_letter_subscription_name("many")
    return {
        "locked": [first.body.decode(), second.body.decode()],
        "deliveries": second.broker_properties["DeliveryCount"],
        "deleted twice": error_of(second.delete),
        "left": drained(service, "many"),
        "dead": drained(service, dead),
        "all": drained(service, "all"),
        "no topic": error_of(service.send_topic_message, "missing", numbered(1)),
        "no subscription": error_of(taken, service, "missing"),
    }


def delete_news(service):
    return [
        service.delete_topic("eu/news", fail_not_exist=True),
        error_of(taken, service, "all"),
    ]


def news_in_an_outage(service):
    return [
        error_of(service.send_topic_message, "eu/news", numbered(number)) for number in (1, 2, 3)
    ]


def news_after_it(service):
    found = {}
    for name, expected in (("all", 3), ("many", 2)):
        messages = [
            service.receive_subscription_message("eu/news", name, timeout=20)
            for _ in range(expected)
        ]
        found[name] = sorted([m.body.decode(), m.custom_properties["n"]] for m in messages)
        found[f"more of {name}"] = drained(service, name)
    return found


OUTAGE_MESSAGES = 5


def send_in_an_outage(service):
    """Send while the primary is down, and return the error of each send."""
    return [
        error_of(
            service.send_queue_message,
            "orders",
            Message(f"order {number}".encode(), custom_properties={"number": number}),
        )
        for number in range(OUTAGE_MESSAGES)
    ]


def receive_after_it(service):
    found = []
    for _ in range(OUTAGE_MESSAGES):
        message = service.receive_queue_message("orders", peek_lock=False, timeout=10)
        found.append([message.body.decode(), message.custom_properties.get("number")])
    return sorted(found)


def main():
    service = client()
    json.dump({part: globals()[part](service) for part in PARTS}, sys.stdout)


if __name__ == "__main__":
    main()
