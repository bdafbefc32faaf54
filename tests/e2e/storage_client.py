"""
azure-storage-queue, plain or on asyncio, and kombu talk to a Pairgate.

Runs in .venv-azure as a process of its own, and prints one JSON object.
Usage: storage_client.py CONNECTION_STRING {plain,asyncio} PART...
"""

import asyncio
import inspect
import json
import sys
import time
from datetime import UTC, datetime, timedelta

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    BinaryBase64DecodePolicy,
    BinaryBase64EncodePolicy,
    CorsRule,
    QueueClient,
    QueueSasPermissions,
    QueueServiceClient,
    ResourceTypes,
    aio,
    generate_account_sas,
    generate_queue_sas,
)

_, CONNECTION, KIND, *PARTS = sys.argv
FIELDS = dict(each.partition("=")[::2] for each in CONNECTION.strip(";").split(";"))
ACCOUNT, KEY, ENDPOINT = (FIELDS[name] for name in ("AccountName", "AccountKey", "QueueEndpoint"))
QUEUES = aio.QueueClient if KIND == "asyncio" else QueueClient
SERVICES = aio.QueueServiceClient if KIND == "asyncio" else QueueServiceClient
LATER = datetime.now(UTC) + timedelta(hours=1)


async def do(result):
    return await result if inspect.isawaitable(result) else result


async def listed(pages):
    if hasattr(pages, "__aiter__"):
        return [each async for each in pages]
    return list(pages)


async def code_of(result):
    """The error that a call ends with; it has none when it's only made, or awaited."""
    try:
        if callable(result):
            result = result()
        if hasattr(result, "__iter__") or hasattr(result, "__aiter__"):
            await listed(result)
        else:
            await do(result)
    except HttpResponseError as error:
        code = getattr(error, "error_code", None)
        return str(getattr(code, "value", code))
    return None


MADE = []


def kept(client):
    """A client that is closed at the end."""
    MADE.append(client)
    return client


def service():
    return kept(SERVICES.from_connection_string(CONNECTION, retry_total=0))


def queue(name, **options):
    return named(f"{KIND}-{name}", **options)


def named(name, **options):
    options = {"retry_total": 0, **options}
    return kept(QUEUES.from_connection_string(CONNECTION, name, **options))


async def fresh(name, **options):
    client = queue(name, **options)
    await do(client.create_queue())
    return client


async def texts(client, **options):
    return [each.content for each in await listed(client.receive_messages(**options))]


async def waiting(client):
    """The number of messages; 0 if there is no such queue."""
    try:
        return (await do(client.get_queue_properties())).approximate_message_count
    except ResourceNotFoundError:
        return 0


async def queues():
    found = {}
    first = queue("a")
    await do(first.create_queue(metadata={"Team": "blue", "Floor_2": "x y"}))
    try:
        await do(first.create_queue(metadata={"Team": "blue", "Floor_2": "x y"}))
    except ResourceExistsError as error:
        found["again"] = error.status_code
    found["other"] = await code_of(lambda: first.create_queue(metadata={"Team": "red"}))
    for name in ("c", "b", "d"):
        await do(queue(name).create_queue())
    pages = service().list_queues(
        name_starts_with=f"{KIND}-", include_metadata=True, results_per_page=2
    )
    items = await listed(pages)
    found["listed"] = [
        [each.name.removeprefix(f"{KIND}-"), each.metadata]
        for each in items
        if len(each.name) == len(KIND) + 2
    ]
    await do(first.set_queue_metadata({"new": "1"}))
    found["metadata"] = (await do(first.get_queue_properties())).metadata
    await do(first.delete_queue())
    found["deleted"] = await code_of(lambda: first.get_queue_properties())
    found["deleted twice"] = await code_of(lambda: first.delete_queue())
    return found


async def poison():
    client, moved = await fresh("bad"), queue("bad-poison")
    settings = {"defaulttimeout": "1", "poisonthreshold": "2"}
    found = {"refused": await code_of(lambda: client.set_queue_metadata({"defaulttimeout": "1s"}))}
    await do(client.set_queue_metadata(settings))
    await do(client.send_message("bad"))
    # A gateway that loses the way back to the namespace behind it leaves a lock there for a minute.
    found["dequeues"], deadline = [], time.monotonic() + 90
    while not await waiting(moved) and time.monotonic() < deadline:
        got = await listed(client.receive_messages())
        found["dequeues"] += [each.dequeue_count for each in got]
        await asyncio.sleep(0.1)
    got = await listed(moved.receive_messages())
    found["moved"] = [[each.content, each.dequeue_count] for each in got]
    found["left"] = (await do(client.get_queue_properties())).approximate_message_count
    return found


async def messages():
    client = await fresh("messages")
    found = {"empty": await texts(client)}
    put = await do(client.send_message("first <&> grün \r\n", time_to_live=-1))
    found["never"] = put.expires_on.year
    await do(client.send_message(""))
    await do(client.send_message("x" * 65536))
    late = await do(client.send_message("late", visibility_timeout=600))
    found["count"] = (await do(client.get_queue_properties())).approximate_message_count
    peeked = await do(client.peek_messages(max_messages=32))
    found["peeked"] = [[len(each.content or ""), each.dequeue_count] for each in peeked]
    got = await listed(client.receive_messages(messages_per_page=32, visibility_timeout=60))
    found["got"] = [[len(each.content or ""), each.dequeue_count] for each in got]
    found["text"] = got[0].content
    found["same"] = got[0].id == put.id
    found["hidden"] = await texts(client)
    updated = await do(client.update_message(got[0], content="changed", visibility_timeout=0))
    again = await do(client.receive_message())
    found["changed"] = [again.content, again.dequeue_count, updated.id == again.id]
    found["stale"] = await code_of(lambda: client.delete_message(got[0]))
    found["stale update"] = await code_of(
        lambda: client.update_message(got[0], visibility_timeout=1)
    )
    await do(client.delete_message(again))
    found["deleted"] = await code_of(lambda: client.delete_message(again))
    await do(client.delete_message(late))  # by the receipt of the put
    shown = await do(client.update_message(got[1], visibility_timeout=1))
    await asyncio.sleep(1.2)
    back = await do(client.receive_message())
    found["back"] = [back.id == got[1].id, back.dequeue_count]
    found["wrong receipt"] = await code_of(lambda: client.delete_message(shown.id, "Ym9ndXM="))
    await do(client.clear_messages())
    found["cleared"] = (await do(client.get_queue_properties())).approximate_message_count
    short = await do(client.send_message("short", time_to_live=1))
    await asyncio.sleep(1.2)
    found["expired"] = [await texts(client), await code_of(lambda: client.delete_message(short))]
    return found


async def rewritten():
    client = await fresh("rewritten")
    await do(client.send_message("first"))
    got = await do(client.receive_message(visibility_timeout=60))
    got = await do(client.update_message(got, content="second", visibility_timeout=60))
    hidden = await texts(client)
    await do(client.update_message(got, content="third <&>", visibility_timeout=0))
    again = await do(client.receive_message())
    return {"hidden": hidden, "text": again.content, "dequeues": again.dequeue_count}


async def binary():
    client = await fresh(
        "binary",
        message_encode_policy=BinaryBase64EncodePolicy(),
        message_decode_policy=BinaryBase64DecodePolicy(),
    )
    await do(client.send_message(bytes(range(256))))
    got = await do(client.receive_message())
    return {"same": got.content == bytes(range(256))}


async def refusals():
    client = await fresh("refusals")
    missing, bad = queue("missing"), named("Bad_Name")
    return {
        "no queue": await code_of(lambda: missing.send_message("x")),
        "no queue to get": await code_of(lambda: missing.receive_messages()),
        "no queue to peek": await code_of(lambda: missing.peek_messages()),
        "no queue to clear": await code_of(lambda: missing.clear_messages()),
        "name": await code_of(lambda: bad.create_queue()),
        "short name": await code_of(lambda: named("ab").create_queue()),
        "too large": await code_of(lambda: client.send_message("x" * 65537)),
        "far too large": await code_of(lambda: client.send_message("x" * 140000)),
        "life": await code_of(lambda: client.send_message("x", time_to_live=0)),
        "visibility": await code_of(lambda: client.send_message("x", visibility_timeout=604801)),
        "visibility and life": await code_of(
            lambda: client.send_message("x", visibility_timeout=60, time_to_live=60)
        ),
        "hide": await code_of(lambda: client.receive_messages(visibility_timeout=604801)),
        "many": await code_of(lambda: client.receive_messages(messages_per_page=33)),
        "no such message": await code_of(
            lambda: client.delete_message("00000000-0000-8465-8000-00000000ffff", "Ym9ndXM=")
        ),
        "no id": await code_of(lambda: client.delete_message("no-id", "Ym9ndXM=")),
        "metadata name": await code_of(lambda: client.set_queue_metadata({"a-b": "1"})),
        "metadata size": await code_of(lambda: client.set_queue_metadata({"a": "x" * 9000})),
    }


async def access():
    client = await fresh("access")
    policy = AccessPolicy(permission=QueueSasPermissions(read=True, process=True), expiry=LATER)
    await do(client.set_queue_access_policy({"readers": policy, "nothing": None}))
    stored = await do(client.get_queue_access_policy())
    found = {"stored": {name: each and each.permission for name, each in sorted(stored.items())}}
    name = client.queue_name
    many = {str(number): policy for number in range(5)}
    await do(client.set_queue_access_policy({**many}))
    await do(client.set_queue_access_policy({"readers": policy}))

    def by(sas, url=ENDPOINT):
        return kept(QUEUES(url, name, credential=sas, retry_total=0))

    of_queue = generate_queue_sas(ACCOUNT, name, KEY, policy_id="readers")
    adds = generate_queue_sas(ACCOUNT, name, KEY, QueueSasPermissions(add=True), LATER)
    await do(by(adds).send_message("by a signature"))
    found["by policy"] = await texts(by(of_queue))
    found["no permission"] = await code_of(lambda: by(of_queue).send_message("x"))
    found["no policy"] = await code_of(
        lambda: by(generate_queue_sas(ACCOUNT, name, KEY, policy_id="x")).send_message("x")
    )
    past = datetime.now(UTC) - timedelta(minutes=1)
    old = generate_queue_sas(ACCOUNT, name, KEY, QueueSasPermissions(add=True), past)
    found["expired"] = await code_of(lambda: by(old).send_message("x"))
    other = generate_queue_sas(ACCOUNT, "other", KEY, QueueSasPermissions(add=True), LATER)
    found["of another queue"] = await code_of(lambda: by(other).send_message("x"))

    def of_account(permissions, types="sco", **options):
        return generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes.from_string(types),
            AccountSasPermissions.from_string(permissions),
            LATER,
            **options,
        )

    await do(by(of_account("a")).send_message("by an account's"))
    found["account"] = await texts(by(of_account("p")))
    found["account's permission"] = await code_of(lambda: by(of_account("r")).send_message("x"))
    found["type"] = await code_of(lambda: by(of_account("a", "s")).send_message("x"))
    found["protocol"] = await code_of(
        lambda: by(of_account("a", protocol="https")).send_message("x")
    )
    found["address"] = await code_of(lambda: by(of_account("a", ip="10.0.0.1")).send_message("x"))
    await do(by(of_account("a", ip="127.0.0.0-127.0.0.9")).send_message("x"))
    found["list of a queue's"] = await code_of(
        lambda: by(of_account("r")).get_queue_access_policy()
    )
    wrong = {"account_name": ACCOUNT, "account_key": "d3Jvbmcga2V5IHdyb25nIGtleQ=="}
    found["wrong key"] = await code_of(lambda: by(wrong).send_message("x"))
    nobody = {"account_name": "nobody", "account_key": KEY}
    there = ENDPOINT.replace(ACCOUNT, "nobody")
    found["no account"] = await code_of(lambda: by(nobody, there).send_message("x"))
    return found


async def properties():
    client = service()
    rule = CorsRule(["https://a.example"], ["GET", "PUT"], max_age_in_seconds=5)
    await do(client.set_service_properties(cors=[rule]))
    found = await do(client.get_service_properties())
    secondary = SERVICES(
        f"{ENDPOINT}-secondary",
        credential={"account_name": ACCOUNT, "account_key": KEY},
        secondary_hostname=ENDPOINT.split("/")[2],
    )
    stats = await do(kept(secondary).get_service_stats())
    return {
        "cors": [[each.allowed_origins, each.allowed_methods] for each in found["cors"]],
        "logging": found["analytics_logging"].version,
        "replication": stats["geo_replication"]["status"],
        "too many": await code_of(lambda: client.set_service_properties(cors=[rule] * 6)),
    }


async def starts():
    """
    Functions create their queue if it is missing, and read its properties, before they send; a
    queue that nobody knows; and kombu, which lists all queues first.
    """
    answers = []
    client, unknown = named("jobs"), named("unknown")
    options = {"raw_response_hook": answers.append}
    await code_of(lambda: client.create_queue(**options))
    count = (await do(client.get_queue_properties(**options))).approximate_message_count
    listed_queues = await listed(service().list_queues(**options))
    known = [answer.http_response for answer in answers]
    await code_of(lambda: unknown.create_queue(**options))
    with by_kombu() as connection, connection.SimpleQueue("tasks") as simple:
        simple.put({"task": 1})
    return {
        "created": known[0].status_code,
        "count": count,
        "listed": [each.name for each in listed_queues],
        "marked": [each.headers.get("x-pairgate-remembered") for each in known],
        "unknown": answers[-1].http_response.status_code,
    }


def by_kombu():
    from kombu import Connection

    host = ENDPOINT.partition("://")[2].partition("/")[0]
    return Connection(f"azurestoragequeues://{KEY}@http://{host}/{ACCOUNT}")


async def tasks():
    """kombu's transport, which is synchronous."""
    got = []
    with by_kombu() as connection, connection.SimpleQueue("tasks") as simple:
        simple.put({"task": 1})
        simple.put({"task": 2})
        for _ in range(2):
            message = simple.get(timeout=10)
            got.append(message.payload)
            message.ack()
        return {"got": got, "left": simple.qsize()}


async def send_all_the_time():
    """
    Send until the standard input ends; return the accepted messages, and the longest time of one
    send.
    """
    client = named("orders", retry_total=3)
    ending = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sent, errors, longest = [], [], 0.0
    while not ending.done():
        body = f"{KIND}-{len(sent)}"
        begun = time.monotonic()
        try:
            await do(client.send_message(body))
            sent.append(body)
            print(flush=True)  # noqa: T201 a sign that it goes on
        except Exception as error:
            errors.append(repr(error))
        longest = max(longest, time.monotonic() - begun)
        await asyncio.sleep(0.02)
    return {"sent": sent, "errors": errors, "longest": longest}


async def take_all():
    """All messages of the queue, deleted; it ends when there was none for a while."""
    client = named("orders", retry_total=3)
    got, ids, last = [], [], time.monotonic()
    while time.monotonic() - last < 3:
        for message in await listed(client.receive_messages(messages_per_page=32)):
            got.append(message.content)
            ids.append(message.id)
            await do(client.delete_message(message))
            last = time.monotonic()
    return {"got": got, "ids": ids}


async def main():
    found = {}
    for part in PARTS:
        found[part] = await globals()[part.replace("-", "_")]()
    for client in MADE:
        await do(client.close())
    json.dump(found, sys.stdout)


asyncio.run(main())
