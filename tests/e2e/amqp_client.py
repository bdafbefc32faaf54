"""
azure-servicebus 7.15, plain and with asyncio, talks to a Pairgate over AMQP.

Runs in `.venv-azure`, as a process of its own, and prints one JSON object. The parts run side by
side, each with a client of its own.
Usage: amqp_client.py plain|asyncio CONNECTION_STRING OPTIONS PART...
"""

import asyncio
import inspect
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from azure import servicebus
from azure.core.exceptions import HttpResponseError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
    aio,
)
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

KIND, CONNECTION, OPTIONS, *PARTS = sys.argv[1:]
API = aio if KIND == "asyncio" else servicebus
LOCK = timedelta(seconds=15)  # longer than the machine stalls
SOON = timedelta(seconds=20)  # a scheduled message is seen, and one of them cancelled, before
WAIT = 60  # seconds for a message that is there
LARGE = 700_000


def client(connection=CONNECTION):
    options = {"retry_total": 0, **json.loads(OPTIONS)}
    if "transport_type" in options:
        options["transport_type"] = TransportType[options["transport_type"]]
    return API.ServiceBusClient.from_connection_string(connection, **options)


# The functions that plain and asyncio clients share.


async def do(result):
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def opened(thing):
    if hasattr(thing, "__aenter__"):
        async with thing:
            yield thing
    else:
        with thing:
            yield thing


async def pause(seconds):
    if KIND == "asyncio":
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251 a thread of its own


async def listed(pages):
    if hasattr(pages, "__aiter__"):
        return [item async for item in pages]
    return list(pages)


async def send(service, queue, *messages):
    async with opened(service.get_queue_sender(queue)) as sender:
        await do(sender.send_messages(list(messages)))


async def take(receiver, count):
    """Receive `count` messages, or fewer if the time is up."""
    taken = []
    while len(taken) < count:
        got = await do(receiver.receive_messages(count - len(taken), max_wait_time=WAIT))
        if not got:
            break
        taken += got
    return taken


async def complete(receiver, messages):
    """Complete the messages; return their bodies."""
    for message in messages:
        await do(receiver.complete_message(message))
    return [str(message) for message in messages]


async def peeked(receiver):
    return [str(message) for message in await do(receiver.peek_messages(10))]


async def error_of(result):
    """The name of the error that the call ends with; the call may have failed already."""
    try:
        await do(result() if callable(result) else result)
    except ServiceBusError as error:
        return type(error).__name__.removesuffix("Error")
    return None


async def error_at_opening(link):
    async def enter():
        async with opened(link):
            pass

    return await error_of(enter())


# The parts.


async def sending(service):
    async with opened(service.get_queue_sender("sending")) as sender:
        await do(sender.send_messages(ServiceBusMessage("single")))
        await do(sender.send_messages([ServiceBusMessage(f"list {n}") for n in range(2)]))
        batch = await do(sender.create_message_batch())
        for n in range(3):
            batch.add_message(ServiceBusMessage(f"batch {n}"))
        await do(sender.send_messages(batch))
        await do(sender.send_messages(ServiceBusMessage("x" * LARGE)))
    async with opened(service.get_queue_receiver("sending")) as receiver:
        bodies = await complete(receiver, await take(receiver, 7))
        return {
            "bodies": [body for body in bodies if len(body) < 100],
            "large": max(map(len, bodies)),
            "left": await peeked(receiver),
        }


async def properties(service):
    given = {"text": "grün", "number": 7, "real": 2.5, "truth": True}
    message = ServiceBusMessage(
        "rich",
        application_properties=given,
        message_id="the id",
        subject="the subject",
        content_type="text/plain",
        correlation_id="the correlation",
        reply_to="the answer",
        to="the target",
        partition_key="key",
        time_to_live=timedelta(hours=1),
    )
    await send(service, "properties", message)
    async with opened(service.get_queue_receiver("properties")) as receiver:
        (got,) = await take(receiver, 1)
        await complete(receiver, [got])
    return {
        "body": str(got),
        "properties": {
            key.decode(): value.decode() if isinstance(value, bytes) else value
            for key, value in got.application_properties.items()
        },
        "id": got.message_id,
        "subject": got.subject,
        "content_type": got.content_type,
        "correlation": got.correlation_id,
        "reply_to": got.reply_to,
        "to": got.to,
        "key": got.partition_key,
        "ttl": got.time_to_live.total_seconds(),
        "count": got.delivery_count,
        "numbered": got.sequence_number > 0,
        "recent": abs(datetime.now(UTC) - got.enqueued_time_utc) < timedelta(minutes=1),
    }


async def scheduling(service):
    async with opened(service.get_queue_sender("scheduling")) as sender:
        due = datetime.now(UTC) + SOON
        several = [ServiceBusMessage("later"), ServiceBusMessage("never")]
        numbers = await do(sender.schedule_messages(several, due))
        later = ServiceBusMessage("by property", scheduled_enqueue_time_utc=due)
        await do(sender.send_messages(later))
        async with opened(service.get_queue_receiver("scheduling")) as receiver:
            before = await peeked(receiver)
            early = await do(receiver.receive_messages(1, max_wait_time=0.5))
            await do(sender.cancel_scheduled_messages(2))  # the second message of its queue
            arrived = await complete(receiver, await take(receiver, 2))
            again = await error_of(lambda: sender.cancel_scheduled_messages(numbers[1]))
    return {
        "numbers": len(set(numbers)),
        "before": sorted(before),
        "early": len(early),
        "arrived": sorted(arrived),
        "cancelled_twice": again,
    }


async def settling(service):
    ways = ["complete", "abandon", "dead-letter", "defer"]
    await send(service, "settling", *map(ServiceBusMessage, ways))
    async with opened(service.get_queue_receiver("settling")) as receiver:
        by_body = {str(message): message for message in await take(receiver, 4)}
        await do(receiver.complete_message(by_body["complete"]))
        await do(receiver.abandon_message(by_body["abandon"]))
        await do(
            receiver.dead_letter_message(
                by_body["dead-letter"], reason="the reason", error_description="the description"
            )
        )
        await do(receiver.defer_message(by_body["defer"]))
        (again,) = await take(receiver, 1)
        await complete(receiver, [again])
        number = by_body["defer"].sequence_number
        deferred = await do(receiver.receive_deferred_messages([number]))
        found = await complete(receiver, deferred)
        gone = await error_of(lambda: receiver.receive_deferred_messages([number]))
        left = await peeked(receiver)
    dead_letters = service.get_queue_receiver("settling", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    async with opened(dead_letters) as receiver:
        (dead,) = await take(receiver, 1)
        await complete(receiver, [dead])
    return {
        "abandoned": [str(again), again.delivery_count],
        "deferred": found,
        "deferred_twice": gone,
        "dead": [str(dead), dead.dead_letter_reason, dead.dead_letter_error_description],
        "left": left,
    }


async def deleting(service):
    await send(service, "deleting", *[ServiceBusMessage(str(n)) for n in range(3)])
    receiver = service.get_queue_receiver(
        "deleting", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10
    )
    async with opened(receiver):
        bodies = [str(message) for message in await take(receiver, 3)]
        return {"bodies": bodies, "left": await peeked(receiver)}


async def peeking(service):
    await send(service, "peeking", *[ServiceBusMessage(str(n)) for n in range(4)])
    async with opened(service.get_queue_receiver("peeking")) as receiver:
        messages = await do(receiver.peek_messages(2))
        rest = await do(receiver.peek_messages(10, sequence_number=3))  # the third of the queue
    return {"first": [str(m) for m in messages], "rest": [str(m) for m in rest]}


async def renewing(service):
    await send(service, "renewing", ServiceBusMessage("by hand"))
    async with opened(service.get_queue_receiver("renewing")) as receiver:
        (message,) = await take(receiver, 1)
        before = message.locked_until_utc
        await pause(1)
        after = await do(receiver.renew_message_lock(message))
        await complete(receiver, [message])
        await send(service, "renewing", ServiceBusMessage("by itself"))
        async with opened(API.AutoLockRenewer()) as renewer:
            (kept,) = await take(receiver, 1)
            renewer.register(receiver, kept, max_lock_renewal_duration=30)
            await pause(LOCK.total_seconds() + 1)
            late = await error_of(lambda: receiver.complete_message(kept))
        return {"later": after > before, "kept": late, "left": await peeked(receiver)}


async def losing(service):
    await send(service, "losing", ServiceBusMessage("late"))
    async with opened(service.get_queue_receiver("losing")) as receiver:
        (message,) = await take(receiver, 1)
        await pause(LOCK.total_seconds() + 0.5)
        late = await error_of(lambda: receiver.complete_message(message))
        (again,) = await take(receiver, 1)
        await complete(receiver, [again])
    return {"late": late, "count": again.delivery_count}


async def sessions(service):
    async with opened(service.get_queue_sender("sessions")) as sender:
        messages = [ServiceBusMessage(f"{s}{n}", session_id=s) for n in range(2) for s in "ab"]
        await do(sender.send_messages(messages))
        without = await error_of(lambda: sender.send_messages(ServiceBusMessage("no session")))
    found = sorted(await listed(service.list_queue_sessions("sessions")))
    async with opened(service.get_queue_receiver("sessions", session_id="b")) as receiver:
        session = receiver.session
        before = session.locked_until_utc
        await do(session.set_state(b"the state"))
        state = await do(session.get_state())
        await pause(1)
        later = await do(session.renew_lock()) > before
        taken = service.get_queue_receiver("sessions", session_id="b")
        locked = await error_at_opening(taken)
        bodies = await complete(receiver, await take(receiver, 2))
    following = service.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION)
    async with opened(following) as receiver:
        name = receiver.session.session_id
        rest = await complete(receiver, await take(receiver, 2))
    async with opened(service.get_queue_receiver("sessions", session_id="b")) as receiver:
        kept = await do(receiver.session.get_state())
        await do(receiver.session.set_state(None))
        cleared = await do(receiver.session.get_state())
    nobody = service.get_queue_receiver(
        "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1
    )
    return {
        "without": without,
        "listed": found,
        "state": [state.decode(), kept.decode(), not cleared],
        "renewed": later,
        "locked": locked,
        "bodies": bodies,
        "next": [name, rest],
        "none": await error_at_opening(nobody),
        "no_session": await error_at_opening(service.get_queue_receiver("sessions")),
    }


async def losing_sessions(service):
    await send(service, "losing-sessions", ServiceBusMessage("late", session_id="s"))
    async with opened(service.get_queue_receiver("losing-sessions", session_id="s")) as receiver:
        (message,) = await take(receiver, 1)
        await pause(LOCK.total_seconds() + 0.5)
        late = await error_of(lambda: receiver.complete_message(message))
    async with opened(service.get_queue_receiver("losing-sessions", session_id="s")) as receiver:
        (again,) = await take(receiver, 1)
        await complete(receiver, [again])
    return {"late": late, "again": str(again)}


async def topics(service):
    async with opened(service.get_topic_sender("topic")) as sender:
        for colour in ("red", "blue"):
            properties = {"colour": colour}
            message = ServiceBusMessage(colour, application_properties=properties, subject=colour)
            await do(sender.send_messages(message))
    found = {}
    for name, count in (("all", 2), ("red", 1), ("blue", 1)):
        receiver = service.get_subscription_receiver("topic", name)
        async with opened(receiver):
            found[name] = await complete(receiver, await take(receiver, count))
            found[name] += await peeked(receiver)
    return found


async def actions(service):
    """Rules with actions: two copies, one of which an action has changed."""
    async with opened(service.get_topic_sender("painted")) as sender:
        message = ServiceBusMessage("m", application_properties={"n": 1, "size": 5}, subject="old")
        await do(sender.send_messages(message))
    receiver = service.get_subscription_receiver("painted", "sub")
    async with opened(receiver):
        messages = await take(receiver, 2)
        found = [
            [text(message.subject), texts(message.application_properties), message.session_id]
            for message in messages
        ]
        await complete(receiver, messages)
    return sorted(found)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def texts(properties):
    return {text(name): text(value) for name, value in properties.items()}


async def refusals(service):
    large = ServiceBusMessage("x" * 2_000_000)
    async with opened(service.get_queue_sender("sending")) as sender:
        too_large = await error_of(lambda: sender.send_messages(large))
    wrong = client(CONNECTION.replace("SAS_KEY_VALUE", "no key at all"))
    async with opened(wrong):
        wrong_key = await error_at_opening(wrong.get_queue_sender("sending"))
    return {
        "sender": await error_at_opening(service.get_queue_sender("nowhere")),
        "receiver": await error_at_opening(service.get_queue_receiver("nowhere")),
        "subscription": await error_at_opening(
            service.get_subscription_receiver("topic", "nowhere")
        ),
        "disabled": await error_at_opening(service.get_queue_receiver("disabled")),
        "wrong_key": wrong_key,
        "too_large": too_large,
    }


async def producing(service):
    """Send until a line comes in. No error is caught: each message was acknowledged."""
    loop = asyncio.get_running_loop()
    stopped = loop.run_in_executor(None, sys.stdin.readline)
    sent, longest = [], 0.0
    async with opened(service.get_queue_sender("orders")) as sender:
        while not stopped.done():
            name = f"{KIND} {len(sent)}"
            began = time.monotonic()
            await do(sender.send_messages(ServiceBusMessage("order", message_id=name)))
            longest = max(longest, time.monotonic() - began)
            sent.append(name)
            print(flush=True)  # noqa: T201 a sign that it goes on
            await asyncio.sleep(0.02)
    return {"sent": sent, "longest": longest}


async def consuming(service):
    """The ids of all messages in the queue."""
    ids = []
    async with opened(service.get_queue_receiver("orders", prefetch_count=50)) as receiver:
        while messages := await do(receiver.receive_messages(50, max_wait_time=3)):
            ids += [message.message_id for message in messages]
            await complete(receiver, messages)
    return ids


async def entities(service):
    """Make the entities that the parts need, over HTTPS at the same port."""
    port = json.loads(OPTIONS).get("port") or CONNECTION.partition(";")[0].rpartition(":")[2]
    management = ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE",
        connection_verify=json.loads(OPTIONS)["connection_verify"],
        retry_total=0,
    )
    for name in ("sending", "properties", "scheduling", "settling", "deleting", "peeking"):
        management.create_queue(name)
    for name in ("renewing", "losing"):
        management.create_queue(name, lock_duration=LOCK)
    management.create_queue("sessions", requires_session=True)
    management.create_queue("losing-sessions", requires_session=True, lock_duration=LOCK)
    disabled = management.create_queue("disabled")
    disabled.status = "Disabled"
    management.update_queue(disabled)
    management.create_topic("topic")
    for name in ("all", "red", "blue"):
        management.create_subscription("topic", name)
    rules = {"red": SqlRuleFilter("colour = 'red'"), "blue": CorrelationRuleFilter(label="blue")}
    for name, rule in rules.items():
        management.delete_rule("topic", name, "$Default")
        management.create_rule("topic", name, "only", filter=rule)
    management.create_topic("painted")
    management.create_subscription("painted", "sub")
    paint = SqlRuleAction(
        "SET n = n + @more; REMOVE size SET sys.Label = 'new', SET sys.SessionId = 'chosen'",
        parameters={"@more": 41},
    )
    management.create_rule("painted", "sub", "paint", filter=SqlRuleFilter("n > 0"), action=paint)
    management.create_topic("ruled")
    management.create_subscription("ruled", "sub")
    return sorted(queue.name for queue in management.list_queues())


# All of them.


async def run(part):
    began = time.monotonic()
    try:
        async with opened(client()) as service:
            result = await part(service)
    except (ServiceBusError, HttpResponseError, ValueError) as error:
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"{part.__name__}: {time.monotonic() - began:.1f} s\n")
    return result


async def run_all(parts):
    return await asyncio.gather(*map(run, parts))


def main():
    parts = [globals()[name] for name in PARTS]
    if KIND == "asyncio":
        results = asyncio.run(run_all(parts))
    else:
        with ThreadPoolExecutor(len(parts)) as threads:
            results = list(threads.map(lambda part: asyncio.run(run(part)), parts))
    sys.stdout.write(json.dumps(dict(zip(PARTS, results, strict=True))))


main()
