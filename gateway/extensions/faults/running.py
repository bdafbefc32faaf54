"""A gateway that runs for an application's own tests, as the tests see it."""

import http.client
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypedDict, Unpack
from urllib.parse import quote

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING
from gateway.extensions.faults.order import (
    ADD_FAULT,
    CLEAR_FAULTS,
    FAULTS,
    Fault,
    FaultKind,
    FaultOrder,
    FaultsToClear,
)
from gateway.wire.pairgate.control_call import ControlCall, NoKeys
from gateway.wire.servicebus.sas import sign_sas

ANSWER_SECONDS: Final = 30.0  # a call is answered at once, unless the machine is busy
NEVER: Final = 4_102_444_800  # the year 2100, for tokens of a gateway that lives for minutes
POLICY: Final = "RootManageSharedAccessKey"  # the emulators', with their well-known keys
KEY: Final = "SAS_KEY_VALUE"
_STORAGE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class FaultChoice(TypedDict, total=False):
    """The operations that meet a fault, and its limits. Times are seconds."""

    entity: str  # a name, or a pattern with `*`; default: every entity
    operation: str | Sequence[str]  # send, receive, settle, renew; default: all that meet the kind
    client: str  # a policy or account, or a pattern; default: every client
    count: int  # operations, after which it ends
    seconds: float  # after which it ends
    delay: float  # of busy and delay; default: 1


class GatewayFailed(Exception):
    """The gateway ended, wasn't ready in time, or refused a call; the text says why."""


@attrs.frozen(kw_only=True)
class AddedFault:
    """A fault that was added; as a context manager it is cleared at the end of the block."""

    gateway: "GatewayForTests"
    id: str

    @property
    def times(self) -> int:
        """
        The operations that have met it so far.

        Raises:
            GatewayFailed: it has ended, so that the gateway doesn't know.
        """
        for each in self.gateway.faults():
            if each.id == self.id:
                return each.times
        raise GatewayFailed(f"fault {self.id} has ended")

    def clear(self) -> None:
        """End it, if it hasn't ended before."""
        if any(each.id == self.id for each in self.gateway.faults()):
            self.gateway.call(CLEAR_FAULTS, FaultsToClear(ids=(self.id,)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.clear()


@attrs.frozen(kw_only=True)
class GatewayForTests:
    """A running gateway with one namespace in memory. Times are seconds."""

    address: str  # HOST:PORT of Service Bus, over AMQP and REST
    storage_address: str
    admin_address: str
    log: Path
    keys: Mapping[str, str] = attrs.field(repr=False)  # of its clients, by their names

    @property
    def connection_string(self) -> str:
        """For clients of Service Bus."""
        return self.connection_string_of(POLICY)

    def connection_string_of(self, client: str) -> str:
        """The same for one of its clients, which `fault` knows by that name."""
        return (
            f"Endpoint=sb://{self.address};SharedAccessKeyName={client};"
            f"SharedAccessKey={self.keys[client]};UseDevelopmentEmulator=true;"
        )

    @property
    def storage_connection_string(self) -> str:
        """For clients of Storage Queue, which `fault` knows as `devstoreaccount1`."""
        return (
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={_STORAGE_KEY};"
            f"QueueEndpoint=http://{self.storage_address}/devstoreaccount1;"
        )

    @property
    def admin_url(self) -> str:
        """For `pairgate fault add ... --url`."""
        return f"http://{self.admin_address}"

    def token(self, resource: str = "", client: str = POLICY) -> str:
        """The header Authorization of a request of Service Bus REST."""
        uri = f"http://{self.address}/{resource}"
        return sign_sas(uri, client, self.keys[client], NEVER)

    def new_queue(self, prefix: str = "queue") -> str:
        """Create a queue that no other test has, and return its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        body = (
            '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
            '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/'
            'servicebus/connect"/></content></entry>'
        )
        path = f"/{quote(name)}?api-version=2021-05"
        headers = {"Authorization": self.token(), "Content-Type": "application/atom+xml"}
        _request(self.address, "PUT", path, body.encode(), headers)
        return name

    def fault(self, kind: str, **choice: Unpack[FaultChoice]) -> AddedFault:
        """
        Add a fault: from now on operations meet it, `count` of them or for `seconds`, else until it
        is cleared. `kind`: busy, fail, detach, drop, lose or delay.

        Raises:
            InvalidRequest: a value isn't one of these, or out of its limits.
            GatewayFailed: the gateway refuses it.
        """
        operation = choice.get("operation", ())
        order = FaultOrder(
            kind=_kind(kind),
            entities=(choice.get("entity", EVERYTHING),),
            operations=(operation,) if isinstance(operation, str) else tuple(operation),
            clients=(choice.get("client", EVERYTHING),),
            count=choice.get("count"),
            seconds=choice.get("seconds"),
            delay=choice.get("delay", 1.0),
        )
        [added] = self.call(ADD_FAULT, order).faults
        return AddedFault(gateway=self, id=added.id)

    def faults(self) -> Sequence[Fault]:
        """The faults that are in force."""
        found: Sequence[Fault] = self.call(FAULTS, NoKeys()).faults
        return found

    def clear_faults(self) -> None:
        """End all faults."""
        self.call(CLEAR_FAULTS, FaultsToClear())

    def call(self, call: ControlCall[Any, Any], request: object) -> Any:
        """
        The answer to a control call.

        Raises:
            GatewayFailed: it was refused.
        """
        headers = {"Content-Type": "application/json", "Authorization": self.token()}
        body = call.build(request)
        data = _request(self.admin_address, call.method, call.target(request), body, headers)
        return call.parse_answer(data, request)


def _kind(text: str) -> FaultKind:
    try:
        return FaultKind(text)
    except ValueError as error:
        kinds = ", ".join(each.value for each in FaultKind)
        raise InvalidRequest(f"kind: one of {kinds} expected, got {text!r:.60}") from error


def _request(
    address: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=ANSWER_SECONDS)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status >= 400:
        raise GatewayFailed(f"{method} {path}: {answer.status} {data.decode(errors='replace')}")
    return data
