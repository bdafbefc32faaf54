"""
Qpid Proton's own client for Python talks to a Pairgate: AMQP 1.0 without any SDK's habits.

Runs as a process of its own and prints one JSON object. The parts run side by side, each with a
connection of its own.
Usage: proton_client.py OPTIONS PART...
"""

import base64
import hashlib
import hmac
import itertools
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote_plus
from uuid import UUID

from proton import (
    UNDESCRIBED,
    Array,
    Condition,
    ConnectionException,
    Data,
    Delivery,
    Described,
    LinkException,
    Message,
    SSLDomain,
    Timeout,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtMostOnce, Container, Filter
from proton.utils import BlockingConnection, LinkDetached, SendException

OPTIONS, *PARTS = sys.argv[1:]
OPTIONS = json.loads(OPTIONS)
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
WAIT = 60  # seconds for what is sure to come
NOTHING = 0.3  # for what must not come
LARGE = OPTIONS.get("large", 700_000)
NAMES = itertools.count()  # of links: one of them has a name to itself
SESSION_FILTER = symbol("com.microsoft:session-filter")


@contextmanager
def connected(mechanism=None, password=KEY, **more):
    """Connect with a policy's key, or as the options say."""
    mechanism = mechanism or OPTIONS.get("mechanism", "PLAIN")
    if mechanism == "PLAIN":
        more |= {"user": KEY_NAME, "password": password, "allow_insecure_mechs": True}
    scheme = "amqp"
    if "ca" in OPTIONS:
        scheme, more["ssl_domain"] = "amqps", domain()
    url = f"{scheme}://localhost:{OPTIONS['port']}"
    connection = BlockingConnection(url, timeout=WAIT, allowed_mechs=mechanism, **more)
    try:
        if mechanism == "EXTERNAL":
            put_token(connection)
        yield connection
    finally:
        connection.close()


def domain():
    ours = SSLDomain(SSLDomain.MODE_CLIENT)
    ours.set_trusted_ca_db(OPTIONS["ca"])
    ours.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    if "certificate" in OPTIONS:
        ours.set_credentials(OPTIONS["certificate"], OPTIONS["key"], None)
    return ours


def put_token(connection):
    """A certificate identifies the client, a token gives its rights."""
    resource, expiry = quote_plus("sb://localhost/"), int(time.time()) + 600
    digest = hmac.digest(KEY.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    token = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={KEY_NAME}"
    receiver = receiver_of(connection, "$cbs", credit=1)
    properties = {"operation": "put-token", "type": "jwt", "name": "sb://localhost/"}
    request = Message(body=token, id="1", reply_to="$cbs", properties=properties)
    sender_of(connection, "$cbs").send(request)
    reply = receiver.receive()
    if reply.properties["status-code"] not in (200, 202):
        raise ConnectionException(str(reply.properties))


def sender_of(connection, address, **more):
    return connection.create_sender(address, name=str(next(NAMES)), **more)


def receiver_of(connection, address, **more):
    return connection.create_receiver(address, name=str(next(NAMES)), **more)


def send(connection, queue, *bodies, **fields):
    sender = sender_of(connection, queue)
    for body in bodies:
        sender.send(Message(body=body, **fields))
    sender.close()


def take(receiver, count):
    bodies = []
    for _ in range(count):
        message = receiver.receive()
        receiver.accept()
        bodies.append(copied(message.body))
    return bodies


def copied(value):
    """Binaries that Proton hands out are gone with their message."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, memoryview) else value


def left(connection, queue):
    """Receive and accept until the queue is empty; return the bodies."""
    receiver = receiver_of(connection, queue, credit=10)
    found = []
    try:
        while True:
            found.append(receiver.receive(timeout=NOTHING).body)
            receiver.accept()
    except Timeout:
        receiver.close()
        return found


def error_of(call):
    """The condition, or the kind of error, that the call ends with."""
    try:
        call()
    except LinkDetached as error:
        return error.condition
    except SendException as error:
        return "rejected" if error.state == Delivery.REJECTED else str(error.state)
    except (ConnectionException, LinkException) as error:
        return type(error).__name__
    return None


# The parts.


def sending():
    with connected(max_frame_size=4096) as connection:
        send(connection, "sending", "single", b"binary")
        settled = sender_of(connection, "sending", options=AtMostOnce())
        settled.send(Message(body="settled"))
        send(connection, "sending", "x" * LARGE)
        receiver = receiver_of(connection, "sending", credit=10)
        bodies = take(receiver, 4)
        return {
            "bodies": sorted(
                body.decode() if isinstance(body, bytes) else body
                for body in bodies
                if len(body) < 100
            ),
            "large": max(map(len, bodies)),
            "left": left(connection, "sending"),
        }


def types():
    """The names of the values that came back with another type."""
    everything = {
        "int": 7,
        "long": 2**40,
        "ulong": ulong(2**63),
        "uint": uint(7),
        "ushort": ushort(2**16 - 1),
        "ubyte": ubyte(7),
        "short": short(-(2**15)),
        "byte": byte(-7),
        "float": float32(1.5),
        "double": 2.5,
        "decimal32": decimal32(7),
        "decimal64": decimal64(2**60),
        "decimal128": decimal128((7).to_bytes(16, "big")),
        "char": char("ü"),
        "time": timestamp(1_700_000_000_123),
        "uuid": UUID(int=7),
        "binary": b"\0\xff",
        "symbol": symbol("name"),
        "null": None,
        "truth": True,
    }
    nested = {
        "list": [1, [2, {"deep": None}]],
        "described": Described(symbol("my:type"), "value"),
        "array": Array(UNDESCRIBED, Data.INT, int32(1), int32(2)),
        "array of described": Array(symbol("my:item"), Data.STRING, "one", "two"),
        "empty": [[], {}, Array(UNDESCRIBED, Data.SYMBOL)],
        "mixed keys": {1: "", ulong(2): "", symbol("a"): "", "b": "", 2.5: "", UUID(int=1): ""},
    }
    given = Message(
        body=everything | nested,
        properties=everything,
        annotations={symbol("x-opt-mine"): ulong(1)},
        id=UUID(int=9),
        correlation_id=ulong(2**63),
        durable=True,
        priority=7,
        ttl=3600,
        subject="the subject",
        address="the target",
        reply_to="the answer",
        content_type=symbol("text/plain"),
        content_encoding=symbol("none"),
        user_id=b"somebody",
        group_id="",
        group_sequence=7,
        reply_to_group_id="the group of the answer",
        creation_time=1_700_000_000,
        expiry_time=1_700_003_600,
        first_acquirer=False,
    )
    with connected() as connection:
        sender_of(connection, "types").send(given)
        receiver = receiver_of(connection, "types", credit=1)
        got = receiver.receive()
        receiver.accept()
    names = ("id", "correlation_id", "durable", "priority", "ttl", "subject", "address", "reply_to")
    names += ("content_type", "content_encoding", "user_id", "body", "properties")
    # Not the expiry, which the namespace stamps.
    names += ("group_sequence", "reply_to_group_id", "creation_time")
    changed = [
        name for name in names if repr(copied(getattr(got, name))) != repr(getattr(given, name))
    ]
    return changed + [
        str(key) for key, value in given.annotations.items() if got.annotations.get(key) != value
    ]


def outcomes():
    with connected() as connection:
        send(connection, "outcomes", "accept", "release", "modify", "defer", "reject")
        receiver = receiver_of(connection, "outcomes", credit=5)
        for _ in range(5):
            receiver.receive()
        receiver.accept()
        receiver.release(delivered=False)
        receiver.release()
        receiver.fetcher.unsettled[0].local.undeliverable = True
        receiver.settle(Delivery.MODIFIED)
        receiver.fetcher.unsettled[0].local.condition = Condition("my:reason", "why it is")
        receiver.reject()
        receiver.flow(2)
        again = []
        for _ in range(2):
            message = receiver.receive()
            receiver.accept()
            again.append([message.body, message.delivery_count])
        dead_letters = receiver_of(connection, "outcomes/$DeadLetterQueue", credit=1)
        dead = dead_letters.receive()
        dead_letters.accept()
        return {
            "again": sorted(again),
            "dead": [dead.body, dead.properties["DeadLetterReason"]],
            "left": left(connection, "outcomes"),
        }


def deleting():
    with connected() as connection:
        send(connection, "deleting", "0", "1")
        receiver = receiver_of(connection, "deleting", credit=2, options=AtMostOnce())
        bodies = [receiver.receive().body for _ in range(2)]
        receiver.close()
        return {"bodies": bodies, "left": left(connection, "deleting")}


def draining():
    """A drain delivers the messages that are there, and returns the rest of the credit."""
    with connected() as connection:
        receiver = receiver_of(connection, "draining", credit=0)
        send(connection, "draining", "0", "1", "2")
        receiver.link.drain(10)
        connection.wait(lambda: receiver.link.credit == 0)
        bodies = [receiver.fetcher.pop().body for _ in range(len(receiver.fetcher.incoming))]
        for _ in bodies:
            receiver.accept()
        receiver.link.drain(5)
        connection.wait(lambda: receiver.link.credit == 0)
        receiver.link.drain_mode = False
        return {"bodies": bodies, "then": len(receiver.fetcher.incoming)}


def sessions():
    with connected() as connection:
        for session in ("a", "b"):
            send(connection, "sessions", f"{session}0", f"{session}1", group_id=session)
        mine = Filter({SESSION_FILTER: "b"})
        receiver = receiver_of(connection, "sessions", credit=5, options=mine)
        bodies = take(receiver, 2)
        taken = error_of(lambda: receiver_of(connection, "sessions", options=mine))
        following = Filter({SESSION_FILTER: None})
        rest = receiver_of(connection, "sessions", credit=5, options=following)
        name = rest.link.remote_source.filter
        name.next()
        return {
            "bodies": bodies,
            "taken": taken,
            "next": [name.get_object().get(SESSION_FILTER), take(rest, 2)],
            "without": error_of(lambda: send(connection, "sessions", "no session")),
        }


def topics():
    with connected() as connection:
        send(connection, "topic", "news")
        return [
            take(receiver_of(connection, f"topic/Subscriptions/{name}"), 1)
            for name in ("one", "two")
        ]


class Transactional(MessagingHandler, TransactionHandler):
    """
    Commits a transaction that moves a message, then rolls one back that would move the next.

    Proton's own transactions: it settles a delivery when its transaction is discharged.
    """

    def __init__(self):
        super().__init__(prefetch=0, auto_accept=False)
        self.steps = []
        self.transaction = None

    def on_start(self, event):
        url = f"amqp://localhost:{OPTIONS['port']}"
        login = {"user": KEY_NAME, "password": KEY, "allowed_mechs": "PLAIN"}
        self.container = event.container
        self.connection = self.container.connect(url, allow_insecure_mechs=True, **login)
        self.sender = self.container.create_sender(self.connection, "to")
        self.receiver = self.container.create_receiver(self.connection, "from")
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event):
        self.steps.append("declared")
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event):
        body = "lost" if "committed" in self.steps else "sent"
        self.transaction.send(self.sender, Message(body=body))
        self.transaction.accept(event.delivery)
        if "committed" in self.steps:
            self.transaction.abort()
        else:
            self.transaction.commit()

    def on_transaction_committed(self, event):
        self.steps.append("committed")
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_aborted(self, event):
        self.steps.append("aborted")
        self.connection.close()

    def on_transaction_commit_failed(self, event):
        self.steps.append(f"failed: {event.delivery.remote.condition}")
        self.connection.close()

    on_transaction_declare_failed = on_transaction_commit_failed


def transactions():
    with connected() as connection:
        send(connection, "from", "moved", "kept")
        client = Transactional()
        Container(client).run()
        return {
            "steps": client.steps,
            "from": left(connection, "from"),
            "to": left(connection, "to"),
        }


def refusals():
    def enter(*arguments):
        with connected(*arguments) as connection:
            sender_of(connection, "sending")

    with connected() as connection:
        return {
            "sender": error_of(lambda: sender_of(connection, "nowhere")),
            "receiver": error_of(lambda: receiver_of(connection, "nowhere")),
            "subscription": error_of(
                lambda: receiver_of(connection, "topic/Subscriptions/nowhere")
            ),
            "dead_letters": error_of(lambda: sender_of(connection, "sending/$DeadLetterQueue")),
            "dynamic": error_of(lambda: receiver_of(connection, None, dynamic=True)),
            "too_large": error_of(lambda: send(connection, "sending", "x" * 2_000_000)),
            "wrong_key": error_of(lambda: enter("PLAIN", "no key at all")),
            "no_token": error_of(lambda: enter("ANONYMOUS")),
        }


def heartbeats():
    """Each side ends a connection on which it hears nothing for so long; under two is refused."""
    with connected(heartbeat=12) as connection:  # longer than the machine stalls
        sender = sender_of(connection, "heartbeats")
        try:
            connection.wait(lambda: False, timeout=26)
        except Timeout:
            sender.send(Message(body="still there"))
        return take(receiver_of(connection, "heartbeats"), 1)


def certificates():
    """Send over a connection with the certificates of the options; return the error."""
    return error_of(sending)


# All of them.


def run(part):
    began = time.monotonic()
    try:
        result = globals()[part]()
    except Exception as error:
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"{part}: {time.monotonic() - began:.1f} s\n")
    return result


def main():
    with ThreadPoolExecutor(len(PARTS)) as threads:
        results = list(threads.map(run, PARTS))
    sys.stdout.write(json.dumps(dict(zip(PARTS, results, strict=True))))


main()
