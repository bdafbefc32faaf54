"""Operations and credentials of the rights table at the Queue service."""

import base64
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.storage_queue.auth import Accounts
from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import parse_response
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.sas import build_sas
from tests.frontends.bearer import World as Provider
from tests.frontends.storage_client import ACCOUNT, HOST, KEY, SECOND_KEY, VERSION, Client
from tests.security.rights.credentials import Credential, bearer
from tests.security.rights.model import Entity, Kind, Right
from tests.security.rights.world import World

QUEUES: Final = ("orders", "orders2", "invoices")
_SOON: Final = "2026-01-01T01:00:00Z"
_STORED: Final = storage.StoredPolicy(id="readers", expiry=_SOON, permission="r")
_SV: Final = {"sv": VERSION}
USER: Final = "5e1f"

Sender = Callable[[Client, Request, str], Awaitable[Any]]


@attrs.frozen(kw_only=True)
class Operation:
    """
    An operation: the right that a token or certificate needs, the types and permissions of an
    account's signature, and the permission of a queue's signature, as Azure documents them.
    """

    name: str
    right: Right
    types: str
    permissions: str
    of_queue: str = ""
    on_account: bool = False
    of: Callable[[str, storage.QueueMessage], storage.Operation]


def _op(
    name: str,
    right: Right,
    types: str,
    permissions: str,
    of: Callable[[str, storage.QueueMessage], storage.Operation],
    of_queue: str = "",
    *,
    on_account: bool = False,
) -> Operation:
    return Operation(
        name=name,
        right=right,
        types=types,
        permissions=permissions,
        of_queue=of_queue,
        on_account=on_account,
        of=of,
    )


_S, _L, _M = Right.SEND, Right.LISTEN, Right.MANAGE
OPERATIONS: Final = (
    _op("put", _S, "o", "a", lambda q, _: storage.PutMessage(queue=q, body=b"x"), "a"),
    _op("get", _L, "o", "p", lambda q, _: storage.GetMessages(queue=q), "p"),
    _op("peek", _L, "o", "r", lambda q, _: storage.PeekMessages(queue=q), "r"),
    _op(
        "update",
        _L,
        "o",
        "u",
        lambda q, m: storage.UpdateMessage(
            queue=q, message_id=m.message_id, pop_receipt=m.pop_receipt or "", visibility=30
        ),
        "u",
    ),
    _op(
        "delete",
        _L,
        "o",
        "p",
        lambda q, m: storage.DeleteMessage(
            queue=q, message_id=m.message_id, pop_receipt=m.pop_receipt or ""
        ),
        "p",
    ),
    _op("clear", _M, "oc", "d", lambda q, _: storage.ClearMessages(queue=q)),
    _op("create queue", _M, "c", "cw", lambda q, _: storage.CreateQueue(queue=q)),
    _op("metadata", _L, "c", "r", lambda q, _: storage.GetMetadata(queue=q), "r"),
    _op("set metadata", _M, "c", "w", lambda q, _: storage.SetMetadata(queue=q)),
    _op("acl", _M, "", "", lambda q, _: storage.GetAcl(queue=q)),
    _op("set acl", _M, "", "", lambda q, _: storage.SetAcl(queue=q, policies=(_STORED,))),
    _op("list", _M, "s", "l", lambda q, _: storage.ListQueues(), on_account=True),
    _op("properties", _M, "s", "r", lambda q, _: storage.GetServiceProperties(), on_account=True),
    _op(
        "set properties",
        _M,
        "s",
        "w",
        lambda q, _: storage.SetServiceProperties(properties=storage.DEFAULT_PROPERTIES),
        on_account=True,
    ),
    _op("delete queue", _M, "c", "d", lambda q, _: storage.DeleteQueue(queue=q)),
)


Allows = Callable[[Operation, str], bool]


@attrs.frozen
class StorageCredential:
    """
    A credential of the Queue service: its permissions, and the way in which a request shows it.
    """

    name: str
    allows: Allows
    send: Sender


def _never(operation: Operation, queue: str) -> bool:
    return False


def _always(operation: Operation, queue: str) -> bool:
    return True


def _by_key(key: bytes) -> Sender:
    async def send(client: Client, request: Request, queue: str) -> Any:
        client.key = key
        return await client.send(request)

    return send


def _by_sas(values: dict[str, str], *, queue: str | None = None, key: bytes = KEY) -> Sender:
    """`queue`: the queue that the signature is for; None: a signature of the account."""

    async def send(client: Client, request: Request, _: str) -> Any:
        sig = build_sas(values, account=ACCOUNT, queue=queue, key=key)
        joint = "&" if "?" in request.target else "?"
        target = f"{request.target}{joint}{urlencode({**values, 'sig': sig})}"
        fields = {name: value for name, value in request.headers.items if name != "Content-Length"}
        return await client.ask(request.method, target, request.body, **fields)

    return send


def _by_credential(credential: Credential) -> Sender:
    async def send(client: Client, request: Request, _: str) -> Any:
        fields = [("Host", HOST), ("x-ms-version", VERSION), *request.headers.items]
        if credential.header is not None:
            fields.append(("Authorization", credential.header))
        asked = attrs.evolve(
            request, headers=Headers.of(fields), target=f"{client.prefix}{request.target}"
        )
        with credential.shown():
            return await client.frontend.handle(asked, client.peer)

    return send


def by_rights(credential: Credential) -> StorageCredential:
    """A token or a certificate, whose rights are those of access policies."""

    def allows(operation: Operation, queue: str) -> bool:
        kind = Kind.NAMESPACE if operation.on_account else Kind.QUEUE
        return credential.permit.allows(operation.right, Entity(queue, kind))

    return StorageCredential(credential.name, allows, _by_credential(credential))


def by_delegation(
    credential: Credential, user: str = "", token: str | None = None
) -> StorageCredential:
    """
    A signature for one queue, by a user delegation key that a client gets with its token; for one
    user, if given, and shown with that user's token.
    """

    def allows(operation: Operation, queue: str) -> bool:
        may = credential.permit.allows(operation.right, Entity(queue, Kind.QUEUE))
        return may and bool(operation.of_queue)

    async def send(client: Client, request: Request, queue: str) -> Any:
        wish = storage.GetUserDelegationKey(expiry=client.clock() + timedelta(hours=1))
        asked = build_request(wish)
        target, header = asked.target, credential.header or ""
        answer = await client.ask("POST", target, asked.body, Authorization=header)
        if answer.status != 200:
            return answer
        key = parse_response(wish, answer)
        assert isinstance(key, storage.UserDelegationKey)
        values = {
            **_SV,
            "sp": "raup",
            "se": _SOON,
            "skoid": key.object_id,
            "sktid": key.tenant_id,
            "skt": key.start,
            "ske": key.expiry,
            "sks": key.service,
            "skv": key.version,
            **({"sduoid": user} if user else {}),
        }
        if token is not None:
            fields = Headers.of([*request.headers.items, ("Authorization", token)])
            request = attrs.evolve(request, headers=fields)
        signed = _by_sas(values, queue=queue, key=base64.b64decode(key.value))
        return await signed(client, request, queue)

    return StorageCredential(f"delegation of {credential.name} {user}", allows, send)


def by_bound_delegations(credential: Credential, provider: Provider) -> Iterator[StorageCredential]:
    """Signatures for one user, by a key of that client, shown by this user and by others."""
    shown = {
        USER: bearer(provider, oid=USER),
        "nobody": None,
        "another user": bearer(provider, oid="another"),
        "another user with all rights": bearer(provider, "all-Manage", oid="another"),
    }
    for name, token in shown.items():
        found = by_delegation(credential, USER, token)
        allows = found.allows if name == USER else _never
        yield attrs.evolve(found, name=f"{found.name}, shown by {name}", allows=allows)


def account_credentials() -> Iterator[StorageCredential]:
    """The account's keys, and the signatures by them."""
    yield StorageCredential("first key", _always, _by_key(KEY))
    yield StorageCredential("second key", _always, _by_key(SECOND_KEY))
    yield StorageCredential("wrong key", _never, _by_key(b"a guess"))
    for letter in "rwdlacup":
        for types in ("s", "c", "o", "sco"):

            def allows(
                operation: Operation, queue: str, letter: str = letter, types: str = types
            ) -> bool:
                return letter in operation.permissions and bool(set(types) & set(operation.types))

            values = {**_SV, "ss": "q", "srt": types, "sp": letter, "se": _SOON}
            yield StorageCredential(f"account's {letter} on {types}", allows, _by_sas(values))
    for letter in "raup":
        for queue in ("orders", "invoices"):

            def allows_queue(
                operation: Operation, asked: str, letter: str = letter, queue: str = queue
            ) -> bool:
                return letter == operation.of_queue and asked == queue

            values = {**_SV, "sp": letter, "se": _SOON}
            send = _by_sas(values, queue=queue)
            yield StorageCredential(f"{letter} on {queue}", allows_queue, send)
    yield StorageCredential(
        "stored policy of orders",
        lambda operation, queue: queue == "orders" and operation.of_queue == "r",
        _by_sas({**_SV, "si": "readers"}, queue="orders"),
    )
    everything = {**_SV, "ss": "q", "srt": "sco", "sp": "rwdlacup", "se": _SOON}
    all_of_queue = {**_SV, "sp": "raup", "se": _SOON}
    for name, send in {
        "stored policy that isn't there": _by_sas({**_SV, "si": "writers"}, queue="orders"),
        "stored policy with permissions": _by_sas(
            {**_SV, "si": "readers", "sp": "raup"}, queue="orders"
        ),
        "stored policy of another queue": _by_sas({**_SV, "si": "readers"}, queue="orders2"),
        "account's expired": _by_sas({**everything, "se": "2025-12-31"}),
        "account's not valid yet": _by_sas({**everything, "st": "2026-01-01T00:30:00Z"}),
        "account's without an end": _by_sas({k: v for k, v in everything.items() if k != "se"}),
        "account's by a wrong key": _by_sas(everything, key=b"a guess"),
        "account's for blobs": _by_sas({**everything, "ss": "b"}),
        "account's over TLS only": _by_sas({**everything, "spr": "https"}),
        "account's for another address": _by_sas({**everything, "sip": "10.0.0.1"}),
        "queue's expired": _by_sas({**all_of_queue, "se": "2025-12-31"}, queue="orders"),
        "queue's by a wrong key": _by_sas(all_of_queue, queue="orders", key=b"a guess"),
        "queue's for Orders": _by_sas(all_of_queue, queue="Orders"),
        "queue's for ord": _by_sas(all_of_queue, queue="ord"),
        "queue's for no queue": _by_sas(all_of_queue, queue=""),
    }.items():
        yield StorageCredential(name, _never, send)


class NotedOperations:
    """Notes the operations that were authorized, and has a message of each queue."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.broker = inner.broker
        self.calls: list[object] = []
        self.messages: dict[str, storage.QueueMessage] = {}

    async def run(self, operation: storage.Operation, message_id: str) -> Any:
        self.calls.append(operation)
        return await self.inner.run(operation, message_id)


async def prepare(client: Client, world: World) -> NotedOperations:
    """Let the client's front end take the world's tokens and certificates, too."""
    noted = NotedOperations(client.frontend.operations)
    operations: Any = noted
    client.frontend.operations = operations
    client.frontend.accounts = Accounts(
        [StorageAccount(name=ACCOUNT, keys=(KEY, SECOND_KEY))],
        wall_clock=client.clock,
        authorizer=world.authorizer,
    )
    return noted


async def verdict(
    client: Client,
    noted: NotedOperations,
    credential: StorageCredential,
    operation: Operation,
    queue: str,
    *,
    may: bool,
) -> str:
    """
    `done`, `refused`, or a sentence that neither of both explains. The queues are made ready only
    for a client that `may`.
    """
    if may or queue not in noted.messages:
        await _make_ready(client, noted, queue)
    noted.calls.clear()
    request = build_request(operation.of(queue, noted.messages[queue]))
    response = await credential.send(client, request, queue)
    if 200 <= response.status < 300:
        return "done"
    if response.status not in {401, 403}:
        return f"{response.status} {response.body!r:.200}"
    return f"refused after {noted.calls}" if noted.calls else "refused"


async def _make_ready(client: Client, noted: NotedOperations, queue: str) -> None:
    """Let all queues be there, and in this one a message that was received, and another one."""
    client.key = KEY
    names = {info.path.key for info in await client.broker.list_queues()}
    for each in QUEUES:
        if each not in names:
            await client.broker.create_queue(EntityPath(each), QueueProperties())
            if each == "orders":
                await client.do(storage.SetAcl(queue=each, policies=(_STORED,)))
    await client.do(storage.PutMessage(queue=queue, body=b"x"))
    taken = await client.do(storage.GetMessages(queue=queue, visibility=30))
    assert isinstance(taken, storage.Messages)
    noted.messages[queue] = taken.items[0]
    await client.do(storage.PutMessage(queue=queue, body=b"x"))
