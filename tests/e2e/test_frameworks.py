"""
Frameworks above the SDKs, at their start: the requests that each sends, in its order, to one
gateway. Each step names the source that sends it. What .NET's SDK writes is as in
Azure.Messaging.ServiceBus, src/Administration/QueuePropertiesExtensions.cs, Serialize.
"""

from typing import Final

import pytest

from tests.e2e.atom_client import Namespace, entry
from tests.e2e.processes import Gateways, broker_config

pytestmark = pytest.mark.slow

MOST: Final = 2**31 - 1  # int.MaxValue of .NET


def rule(name: str, rule_filter: str) -> str:
    """The inside of a rule's description: the filter, an empty action, the name."""
    return f'{rule_filter}<Action i:type="EmptyRuleAction"/><Name>{name}</Name>'


def sql(expression: str, kind: str = "SqlFilter") -> str:
    shown = expression.replace("<", "&lt;")
    return f'<Filter i:type="{kind}"><SqlExpression>{shown}</SqlExpression></Filter>'


async def start_masstransit(namespace: Namespace, queue: str, topic: str) -> None:
    """
    A receive endpoint with one consumer starts: ServiceBusConnectionContext.cs, CreateQueue,
    CreateTopic, CreateTopicSubscription, with the values of Defaults.cs. Names of topics are those
    of ServiceBusMessageNameFormatter.cs: "---", "--", "~" or "/", and "-".
    """
    assert (await namespace.get(queue)).is_missing  # QueueExistsAsync
    made = await namespace.put(
        queue,
        "QueueDescription",
        LockDuration="PT5M",  # Defaults.LockDuration
        MaxSizeInMegabytes=1024,
        RequiresDuplicateDetection=False,
        RequiresSession=False,
        DefaultMessageTimeToLive="P366D",  # Defaults.DefaultMessageTimeToLive
        DeadLetteringOnMessageExpiration=True,
        MaxDeliveryCount=5,
        EnableBatchedOperations=True,
        IsAnonymousAccessible=False,
        Status="Active",
        AutoDeleteOnIdle="P427D",  # Defaults.AutoDeleteOnIdle
        EnablePartitioning=False,
        EnableExpress=False,
    )
    assert made.status == 201
    assert (made.read("AutoDeleteOnIdle"), made.read("MaxDeliveryCount")) == ("P427D", "5")

    assert (await namespace.get(topic)).is_missing  # TopicExistsAsync
    made = await namespace.put(
        topic,
        "TopicDescription",
        DefaultMessageTimeToLive="P366D",
        MaxSizeInMegabytes=1024,
        RequiresDuplicateDetection=False,
        EnableBatchedOperations=True,
        FilteringMessagesBeforePublishing=False,
        IsAnonymousAccessible=False,
        Status="Active",
        SupportOrdering=False,
        AutoDeleteOnIdle="P427D",
        EnablePartitioning=False,
        EnableSubscriptionPartitioning=False,
        EnableExpress=False,
    )
    assert made.status == 201

    subscription = f"{topic}/Subscriptions/{queue}"
    assert (await namespace.get(subscription)).is_missing  # GetSubscriptionAsync
    made = await namespace.put(
        subscription,
        "SubscriptionDescription",
        LockDuration="PT5M",
        RequiresSession=False,
        DefaultMessageTimeToLive="P366D",
        DeadLetteringOnMessageExpiration=False,
        DeadLetteringOnFilterEvaluationExceptions=True,
        MaxDeliveryCount=5,
        EnableBatchedOperations=True,
        Status="Active",
        # NormalizeForwardToAddress makes it absolute
        ForwardTo=f"http://{namespace.address}/{queue}",
        AutoDeleteOnIdle="P427D",
    )
    assert made.status == 201


MASSTRANSITS: Final = (
    ("order-submitted", "shop.contracts/order-submitted"),
    ("OrderSubmitted", "Shop.Contracts~OrderSubmitted"),
    ("faults", "MassTransit~Fault--Shop.Contracts-OrderSubmitted--"),
    ("kitchen_bus_" + "x" * 26, "shop/" + "very.long.name.of.a.contract/" * 8 + "event"),
)


async def masstransit_starts_publishes_and_starts_again(
    namespace: Namespace, queue: str, topic: str
) -> None:
    await start_masstransit(namespace, queue, topic)
    sent = await namespace.send(topic, "an event")
    delivered = await namespace.take(queue)
    # The second start: it compares ForwardTo without "sb://HOST/" with the queue's name, and
    # updates the subscription if they differ.
    again = await namespace.get(f"{topic}/Subscriptions/{queue}")
    host = namespace.address.partition(":")[0]
    forwards = again.read("ForwardTo")

    assert (sent, delivered) == (201, "an event")
    assert forwards.startswith(f"sb://{host}")
    assert forwards.rpartition("/")[2] == queue
    # A conflict, if two instances start at once, is MessagingEntityAlreadyExists.
    assert (await namespace.put(queue, "QueueDescription", LockDuration="PT5M")).status == 409


async def masstransit_updates_the_filter_of_its_subscription(namespace: Namespace) -> None:
    """CreateTopicSubscription with a rule: GetRuleAsync, and UpdateRuleAsync as they differ."""
    await start_masstransit(namespace, "reds", "shop/painted")
    path = "shop/painted/Subscriptions/reds/Rules/$Default"

    got = await namespace.get(path)
    changed = await namespace.ask(
        "PUT",
        f"/{path}?api-version=2021-05",
        entry("RuleDescription", {}).replace(
            "</RuleDescription>", f"{rule('$Default', sql('color = 1'))}</RuleDescription>"
        ),
        **{"If-Match": "*"},
    )
    await namespace.send("shop/painted", "red", color="1")
    await namespace.send("shop/painted", "blue", color="2")

    assert (got.status, changed.status) == (200, 200)
    assert [await namespace.take("reds"), await namespace.take("reds")] == ["red", None]


async def nservicebus_routes_events_by_their_types(namespace: Namespace) -> None:
    """
    NServiceBus.Transport.AzureServiceBus: ForwardingTopologyCreator.Create makes the topic, with a
    hierarchy the second one and a subscription "forwardTo-" it, then QueueCreator the queues;
    MigrationTopologySubscriptionManager.SetupInfrastructureCore the subscription, whose only rule
    "$default" lets nothing through; SubscribeEvent, or the command line's Rule.cs, adds a rule for
    each type of event.
    """
    topic = {
        "MaxSizeInMegabytes": 5120,
        "EnableBatchedOperations": True,
        "EnablePartitioning": False,
    }
    subscription = {
        "LockDuration": "PT5M",
        "DeadLetteringOnFilterEvaluationExceptions": False,
        "MaxDeliveryCount": MOST,
        "EnableBatchedOperations": True,
    }
    queue = {"LockDuration": "PT5M", "MaxDeliveryCount": MOST, "MaxSizeInMegabytes": 5120}
    target = f"http://{namespace.address}/"
    made = [
        await namespace.put("bundle-1", "TopicDescription", **topic),
        await namespace.put("bundle-2", "TopicDescription", **topic),
        await namespace.put(
            "bundle-1/Subscriptions/forwardTo-bundle-2",
            "SubscriptionDescription",
            **subscription,
            DefaultRuleDescription=rule("$default", sql("1=1", "TrueFilter")),
            ForwardTo=f"{target}bundle-2",
            UserMetadata="bundle-2",
        ),
        await namespace.put("Shop.Shipping", "QueueDescription", **queue),
        await namespace.put(
            "bundle-2/Subscriptions/Shop.Shipping",
            "SubscriptionDescription",
            **subscription,
            DefaultRuleDescription=rule("$default", sql("1=0", "FalseFilter")),
            ForwardTo=f"{target}Shop.Shipping",
            UserMetadata="Shop.Shipping",
        ),
    ]
    again = await namespace.put("bundle-1", "TopicDescription", **topic)
    event = "Shop.Messages.Events.OrderAccepted"
    wanted = f"[NServiceBus.EnclosedMessageTypes] LIKE '%{event}%'"
    ruled = await namespace.ask(
        "PUT",
        f"/bundle-2/Subscriptions/Shop.Shipping/Rules/{event}?api-version=2021-05",
        entry("RuleDescription", {}).replace(
            "</RuleDescription>", f"{rule(event, sql(wanted))}</RuleDescription>"
        ),
    )
    rules = await namespace.get("bundle-2/Subscriptions/Shop.Shipping/Rules")
    types = f"{event}, Shop.Messages, Version=1.0.0.0;Shop.Messages.Events.IOrderEvent"
    for kind, body in ((types, "accepted"), ("Shop.Messages.Events.OrderBilled", "billed")):
        headers = {"NServiceBus.EnclosedMessageTypes": f'"{kind}"'}
        await namespace.send("bundle-1", body, **headers)
    found = [await namespace.take("Shop.Shipping"), await namespace.take("Shop.Shipping")]

    assert [each.status for each in made] == [201] * 5
    assert (again.status, ruled.status) == (409, 201)
    assert sorted(rules.titles()) == ["$default", event]
    assert found == ["accepted", None]


async def dapr_makes_what_is_missing_and_starts_again(namespace: Namespace) -> None:
    """
    components-contrib, common/component/azure/servicebus/client.go: EnsureSubscription asks for the
    topic and the subscription, and creates those whose GET has no result; EnsureQueue likewise.
    The answers of a second start tell whether the subscription requires sessions.
    """
    before = [
        (await namespace.get(path)).is_missing
        for path in ("neworder", "neworder/Subscriptions/checkout", "jobs")
    ]
    made = [
        await namespace.put("neworder", "TopicDescription"),
        await namespace.put(
            "neworder/Subscriptions/checkout",
            "SubscriptionDescription",
            # metadata.go, CreateSubscriptionProperties; kitmd.Duration.ToISOString
            LockDuration="P0DT0H0M60S",
            RequiresSession=True,
            DefaultMessageTimeToLive="P0DT0H1M0S",
            MaxDeliveryCount=10,
            AutoDeleteOnIdle="P0DT1H0M0S",
        ),
        await namespace.put("jobs", "QueueDescription", MaxDeliveryCount=10),
    ]
    again = await namespace.get("neworder/Subscriptions/checkout")

    assert before == [True, True, True]
    assert [each.status for each in made] == [201, 201, 201]
    assert (again.status, again.read("RequiresSession")) == (200, "true")


async def scalers_read_how_many_messages_wait(namespace: Namespace) -> None:
    """
    KEDA, kedacore/keda 8b4f083c, pkg/scalers/azure_servicebus_scaler.go: getQueueLength (280) and
    getSubscriptionLength (312) ask for runtime properties, or with `useRegex` for pages of them
    (293, 326), and read ActiveMessageCount (288, 302, 321, 335). Azure Functions,
    ServiceBusMetricsProvider.cs, GetMetricsAsync: a peek from 0, then the runtime properties, and
    the description for EnablePartitioning.
    """
    await namespace.put("work", "QueueDescription")
    await namespace.put("news", "TopicDescription")
    await namespace.put("news/Subscriptions/all", "SubscriptionDescription")
    for entity in ("work", "work", "news"):
        await namespace.send(entity, "x")

    queue = await namespace.get("work")  # GetQueueRuntimeProperties, GetQueueAsync
    queues = await namespace.ask("GET", "/$Resources/Queues?api-version=2021-05&$skip=0&$top=100")
    one = await namespace.get("news/Subscriptions/all")
    several = await namespace.ask("GET", "/news/Subscriptions?api-version=2021-05&$skip=0&$top=100")
    gone = await namespace.get("gone")

    assert (queue.read("ActiveMessageCount"), queue.read("EnablePartitioning")) == ("2", "false")
    assert queue.read("DeadLetterMessageCount") == "0"
    assert one.read("ActiveMessageCount") == "1"
    assert queues.titles() == ["work"]
    assert several.titles() == ["all"]
    assert gone.is_missing  # "queue gone doesn't exist", MessagingEntityNotFound


async def test_frameworks_start_as_before_service_bus(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config())
    namespace = Namespace(gateway.address)

    await scalers_read_how_many_messages_wait(namespace)  # first: they list all queues
    for queue, topic in MASSTRANSITS:
        await masstransit_starts_publishes_and_starts_again(namespace, queue, topic)
    await masstransit_updates_the_filter_of_its_subscription(namespace)
    await nservicebus_routes_events_by_their_types(namespace)
    await dapr_makes_what_is_missing_and_starts_again(namespace)
