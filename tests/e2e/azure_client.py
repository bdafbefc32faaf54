"""
ServiceBusAdministrationClient of azure-servicebus 7.15 manages a Pairgate over TLS.

Runs in `.venv-azure`, as a process of its own, and prints one JSON object.
Usage: azure_client.py PORT CA PART...
"""

import json
import sys
from datetime import datetime, timedelta
from xml.etree.ElementTree import fromstring

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

PORT, CA, *PARTS = sys.argv[1:]


def client(key="SAS_KEY_VALUE"):
    return ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://localhost:{PORT};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={key}",
        connection_verify=CA,
        retry_total=0,
    )


def error_of(call, *arguments, **named):
    """The class of the error, and its status where the service has answered one."""
    try:
        result = call(*arguments, **named)
        if hasattr(result, "__next__"):
            next(result)
    except HttpResponseError as error:
        return [type(error).__name__, error.status_code]
    return None


def fields(value, *names):
    found = {name: getattr(value, name) for name in names}
    return {n: str(v) if isinstance(v, timedelta) else v for n, v in found.items()}


def queues(service):
    service.create_queue("eu/plain")
    made = service.create_queue(
        "eu/rich",
        lock_duration=timedelta(seconds=13),
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        default_message_time_to_live="PT11M",
        requires_session=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=12),
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
        auto_delete_on_idle="PT10M",
        user_metadata="<mine>",
        forward_dead_lettered_messages_to="eu/plain",
    )
    told = service.get_queue("eu/rich")
    counts = service.get_queue_runtime_properties("eu/rich")
    return {
        "told is made": [
            name for name, value in vars(made).items()
            if name != "_internal_qd" and value != getattr(told, name)
        ],
        "made": fields(
            made, "name", "lock_duration", "max_delivery_count", "max_size_in_megabytes",
            "default_message_time_to_live", "requires_session", "requires_duplicate_detection",
            "duplicate_detection_history_time_window", "dead_lettering_on_message_expiration",
            "auto_delete_on_idle", "user_metadata", "status",
        ),
        "dead letters": made.forward_dead_lettered_messages_to.replace(PORT, "PORT"),
        "counts": fields(
            counts, "name", "total_message_count", "active_message_count",
            "dead_letter_message_count", "scheduled_message_count", "size_in_bytes",
            "transfer_message_count", "transfer_dead_letter_message_count",
        ),
        "dates": counts.created_at_utc is not None and counts.updated_at_utc is not None,
        "listed": [queue.name for queue in service.list_queues()],
        "listed counts": [queue.name for queue in service.list_queues_runtime_properties()],
        "deleted": [service.delete_queue(name) for name in ("eu/rich", "eu/plain")],
        "left": [queue.name for queue in service.list_queues()],
    }  # fmt: skip


def updates(service):
    queue = service.create_queue("changing")
    queue.max_delivery_count = 7
    queue.lock_duration = timedelta(minutes=2)
    service.update_queue(queue)
    service.update_queue(queue, user_metadata="by keyword")
    told = service.get_queue("changing")
    flagged = service.get_queue("changing")
    flagged.requires_session = True
    missing = service.get_queue("changing")
    missing.name = "missing"
    wrong = service.get_queue("changing")
    wrong.lock_duration = timedelta(minutes=6)
    return {
        "told": fields(told, "max_delivery_count", "lock_duration", "user_metadata"),
        "immutable": error_of(service.update_queue, flagged),
        "missing": error_of(service.update_queue, missing),
        "too long": error_of(service.update_queue, wrong),
        "after errors": service.get_queue("changing").requires_session,
        "deleted": service.delete_queue("changing"),
    }


def etags(service):
    """
    Check ETags. The public methods write `*` only; the generated methods below them write the given
    one.
    """
    service.create_queue("versioned")
    tags = []

    def keep(response, element, _):
        tags.append(response.http_response.headers.get("ETag"))
        return element

    def put(tag):
        body = (
            '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
            "<QueueDescription xmlns="
            '"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
            "<MaxDeliveryCount>3</MaxDeliveryCount></QueueDescription></content></entry>"
        )
        condition = MatchConditions.IfNotModified
        service._impl.entity.put("versioned", fromstring(body), etag=tag, match_condition=condition)

    service.get_queue("versioned", cls=keep)
    results = {"fresh": error_of(put, tags[0]), "stale": error_of(put, tags[0])}
    service.get_queue("versioned", cls=keep)
    results["fresh again"] = error_of(put, tags[1])
    service.delete_queue("versioned")
    return results


def refusals(service):
    service.create_queue("there")
    refused = {
        "exists": error_of(service.create_queue, "there"),
        "missing": error_of(service.get_queue, "missing"),
        "missing counts": error_of(service.get_queue_runtime_properties, "missing"),
        "missing to delete": error_of(service.delete_queue, "missing"),
        "empty name": error_of(service.create_queue, ""),
        "bad name": error_of(service.create_queue, "a//b"),
        "long lock": error_of(service.create_queue, "x", lock_duration=timedelta(minutes=6)),
        "long window": error_of(
            service.create_queue,
            "x",
            duplicate_detection_history_time_window=timedelta(days=8),
        ),
        "deliveries": error_of(service.create_queue, "x", max_delivery_count=0),
        "wrong key": error_of(client("wrong").get_queue, "there"),
        "elsewhere": error_of(service.create_queue, "x", forward_to="sb://elsewhere/q"),
    }
    service.delete_queue("there")
    return refused


def pages(service):
    names = [f"page/{index:03}" for index in range(105)]
    for name in names:
        service.create_queue(name)
    listed = [queue.name for queue in service.list_queues()]
    by_tens = [queue.name for queue in service.list_queues(max_page_size=10, start_index=50)]
    for name in listed:
        service.delete_queue(name)
    return {"all": listed == names, "from 50": by_tens == names[50:]}


def namespace(service):
    return fields(
        service.get_namespace_properties(), "name", "messaging_sku", "messaging_units", "alias"
    )


def topics(service):
    made = service.create_topic(
        "eu/topic",
        default_message_time_to_live=timedelta(minutes=11),
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window="PT12M",
        support_ordering=True,
        auto_delete_on_idle=timedelta(minutes=10),
        user_metadata="mine",
    )
    made.default_message_time_to_live = timedelta(minutes=20)
    service.update_topic(made)
    told = service.get_topic("eu/topic")
    service.create_subscription("eu/topic", "one")
    counts = service.get_topic_runtime_properties("eu/topic")
    flagged = service.get_topic("eu/topic")
    flagged.requires_duplicate_detection = False
    results = {
        "told": fields(
            told, "name", "default_message_time_to_live", "max_size_in_megabytes",
            "requires_duplicate_detection", "duplicate_detection_history_time_window",
            "auto_delete_on_idle", "user_metadata", "support_ordering", "status",
        ),
        "counts": fields(
            counts, "name", "subscription_count", "scheduled_message_count", "size_in_bytes"
        ),
        "listed": [topic.name for topic in service.list_topics()],
        "no queue": [queue.name for queue in service.list_queues()],
        "immutable": error_of(service.update_topic, flagged),
        "exists": error_of(service.create_topic, "eu/topic"),
        "queue of that name": error_of(service.create_queue, "eu/topic"),
        "missing": error_of(service.get_topic, "missing"),
        "missing to delete": error_of(service.delete_topic, "missing"),
    }  # fmt: skip
    service.delete_topic("eu/topic")
    results["left"] = [topic.name for topic in service.list_topics()]
    return results


def subscriptions(service):
    service.create_topic("topic")
    service.create_queue("target")
    made = service.create_subscription(
        "topic",
        "rich",
        lock_duration=timedelta(seconds=13),
        requires_session=True,
        default_message_time_to_live=timedelta(minutes=11),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=14,
        user_metadata="mine",
        forward_dead_lettered_messages_to="target",
        auto_delete_on_idle="PT10M",
    )
    service.create_subscription("topic", "plain")
    made.max_delivery_count = 15
    service.update_subscription("topic", made)
    told = service.get_subscription("topic", "rich")
    counts = service.get_subscription_runtime_properties("topic", "rich")
    missing = service.get_subscription("topic", "rich")
    missing.name = "missing"
    results = {
        "told": fields(
            told, "name", "lock_duration", "requires_session", "default_message_time_to_live",
            "dead_lettering_on_message_expiration", "max_delivery_count", "user_metadata",
            "dead_lettering_on_filter_evaluation_exceptions", "auto_delete_on_idle",
        ),
        "dead letters": told.forward_dead_lettered_messages_to.rpartition("/")[2],
        "counts": fields(
            counts, "name", "total_message_count", "active_message_count",
            "dead_letter_message_count", "transfer_dead_letter_message_count",
        ),
        "listed": [s.name for s in service.list_subscriptions("topic")],
        "listed counts": [s.name for s in service.list_subscriptions_runtime_properties("topic")],
        "exists": error_of(service.create_subscription, "topic", "rich"),
        "missing": error_of(service.get_subscription, "topic", "missing"),
        "missing to update": error_of(service.update_subscription, "topic", missing),
        "of no topic": error_of(service.create_subscription, "missing", "s"),
        "missing to delete": error_of(service.delete_subscription, "topic", "missing"),
        "long name": error_of(service.create_subscription, "topic", "s" * 51),
    }  # fmt: skip
    service.delete_subscription("topic", "rich")
    results["left"] = [s.name for s in service.list_subscriptions("topic")]
    service.delete_topic("topic")
    service.delete_queue("target")
    return results


VALUES = {
    "int": 5,
    "long": 2**40,
    "text": "a <b> & 'c'",
    "yes": True,
    "double": 1.5,
    "span": timedelta(days=1, hours=2, minutes=3, seconds=4),
    "date": datetime(2020, 1, 1, 12, 30),
}


def rules(service):
    service.create_topic("topic")
    service.create_subscription("topic", "s")
    place = ("topic", "s")
    default = service.get_rule(*place, "$Default")
    service.create_rule(
        *place,
        "sql",
        filter=SqlRuleFilter("priority > @low", parameters={"@low": 5}),
        action=SqlRuleAction("SET priority = @high", parameters={"@high": "many"}),
    )
    service.create_rule(
        *place,
        "correlation",
        filter=CorrelationRuleFilter(
            correlation_id="c", message_id="m", to="t", reply_to="r", label="l", session_id="s",
            reply_to_session_id="rs", content_type="ct", properties=VALUES,
        ),
    )  # fmt: skip
    service.create_rule(*place, "every")
    sql = service.get_rule(*place, "sql")
    correlation = service.get_rule(*place, "correlation")
    sql.filter = SqlRuleFilter("priority < 5")
    service.update_rule(*place, sql)
    updated = service.get_rule(*place, "sql")
    missing = service.get_rule(*place, "sql")
    missing.name = "missing"
    results = {
        "default": [type(default.filter).__name__, default.filter.sql_expression],
        "parameters": [sql.action.sql_expression, dict(sql.action.parameters)],
        "correlation": fields(
            correlation.filter, "correlation_id", "message_id", "to", "reply_to", "label",
            "session_id", "reply_to_session_id", "content_type",
        ),
        "values": correlation.filter.properties == VALUES,
        "updated": updated.filter.sql_expression,
        "listed": sorted(rule.name for rule in service.list_rules(*place)),
        "exists": error_of(service.create_rule, *place, "sql"),
        "missing": error_of(service.get_rule, *place, "missing"),
        "missing to update": error_of(service.update_rule, *place, missing),
        "missing to delete": error_of(service.delete_rule, *place, "missing"),
        "wrong": error_of(service.create_rule, *place, "w", filter=SqlRuleFilter("priority >")),
        "wrong action": error_of(
            service.create_rule, *place, "w", filter=TrueRuleFilter(), action=SqlRuleAction("SET n")
        ),
    }  # fmt: skip
    service.delete_rule(*place, "$Default")
    results["left"] = sorted(rule.name for rule in service.list_rules(*place))
    service.delete_topic("topic")
    return results


def main():
    with client() as service:
        results = {part: globals()[part](service) for part in PARTS}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
