"""`check` and `send` report a namespace that refuses, or doesn't answer."""

import random
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio

from gateway.app.failure import Failure
from gateway.app.namespaces import check_credentials
from gateway.app.operations.checking import (
    _add_secrecy,
    _check_backlog,
    _check_identity,
    _check_namespace,
    _check_records,
    _try_queue,
    check,
)
from gateway.app.operations.findings import Findings, Grade
from gateway.app.operations.messages import _failed
from gateway.app.operations.targets import OpenNamespace
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.config.options import Config, Namespace, Pairing
from gateway.domain.backlog import BacklogQueue, heartbeat_queue
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import (
    BrokerError,
    LoginRefused,
    NotAuthorized,
    Unavailable,
    Unreachable,
)
from gateway.domain.health.abilities import Ability
from gateway.domain.identity import Identity, fingerprint
from gateway.domain.plan import Plan, PlannedQueue
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.provision import provision
from gateway.pairing.syphon.destination import Destination
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Operation, Refuse

ORDERS = EntityPath("orders")
REST = Namespace(
    name="north",
    url="servicebus+http://key@east.example:8080",
    plan=Plan(queues=(PlannedQueue(path=ORDERS),)),
)
RABBITMQ = Namespace(name="north", url="rabbitmq://gateway@rabbit/pairgate")
STORAGE = Namespace(
    name="north",
    url="storage-queue:AccountName=contoso;QueueEndpoint=http://east.example:8080/contoso",
)


@pytest.fixture
async def broker(nursery: trio.Nursery) -> FaultyBroker:
    store = MemoryBroker(VirtualClock(), random.Random(0))
    await store.create_queue(ORDERS, QueueProperties())
    faulty = FaultyBroker(inner=store)
    await nursery.start(faulty.run)
    return faulty


def refuse(broker: FaultyBroker, operation: Operation, error: BrokerError) -> None:
    broker.fault = lambda asked, _: Refuse(lambda: error) if asked is operation else None


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        (REST, "check key and key name, and give the key the right Manage"),
        (RABBITMQ, "give the user the permission configure (and, where the namespace has"),
    ],
)
async def test_missing_rights_to_a_backlog_queue_are_those_of_its_broker(
    broker: FaultyBroker, namespace: Namespace, said: str
) -> None:
    refuse(broker, Operation.MANAGE, NotAuthorized("access refused (403)"))
    locks: list[timedelta] = []

    usable, [doubt] = await _try_queue(broker, namespace, BacklogQueue(path=ORDERS), locks)

    assert usable
    assert said in doubt
    assert "access refused (403)" in doubt
    assert ("Manage" in doubt) is (namespace is REST)


@pytest.mark.parametrize(
    ("namespace", "cure"),
    [
        (REST, "check the key name or user in namespaces.north.url, and the key or password"),
        (
            RABBITMQ,
            "give the user the permission write in the vhost, which namespaces.north.url names",
        ),
        (STORAGE, "check the account's name in namespaces.north.url, and its key"),
    ],
    ids=["service bus", "rabbitmq", "storage"],
)
async def test_refused_credentials_name_entity_status_and_the_cure_in_the_namespaces_terms(
    broker: FaultyBroker, namespace: Namespace, cure: str
) -> None:
    refuse(broker, Operation.PROBE, NotAuthorized("HTTP status 401"))

    with pytest.raises(Failure) as refused:
        await check_credentials(broker, attrs.evolve(namespace, plan=REST.plan))

    text = str(refused.value)
    assert text.startswith("namespace north refuses the credentials: ")
    assert text.endswith(f", orders: HTTP status 401; {cure}")


@pytest.mark.parametrize("namespace", [REST, RABBITMQ, STORAGE])
@pytest.mark.parametrize("operation", [Operation.MANAGE, Operation.PROBE])
async def test_a_refused_login_is_told_once_and_is_no_missing_permission(
    broker: FaultyBroker, namespace: Namespace, operation: Operation
) -> None:
    refuse(broker, operation, LoginRefused("Login was refused (403)"))
    planned = attrs.evolve(namespace, plan=REST.plan)
    findings = Findings()

    with pytest.raises(Failure) as refused:
        await _check_namespace(broker, planned, findings)

    text = str(refused.value)
    assert text.count("Login was refused (403); check ") == 1
    assert "permission" not in text
    assert "Manage" not in text
    assert findings.items == []


async def test_all_missing_queues_are_one_finding(broker: FaultyBroker) -> None:
    names = ("orders", "invoices", "bills")
    plan = Plan(queues=tuple(PlannedQueue(path=EntityPath(name)) for name in names))
    findings = Findings()

    await _check_namespace(broker, attrs.evolve(REST, plan=plan), findings)

    assert [each.text for each in findings.items if each.grade is Grade.WARNING] == [
        "queues invoices, bills are missing; `pairgate provision` creates them"
    ]


async def test_a_namespace_without_connection_is_no_case_for_provision(
    broker: FaultyBroker,
) -> None:
    refuse(broker, Operation.MANAGE, Unreachable("Connection refused"))
    pairing = Pairing(primary="south", secondary="north", options=PairOptions(label="south"))
    findings = Findings()

    with pytest.raises(Failure) as failed:
        await _check_backlog(broker, REST, pairing, findings)

    assert str(failed.value).startswith("east.example:8080: Connection refused; check whether")
    assert findings.items == []


async def test_backlog_queues_with_one_problem_are_one_finding(broker: FaultyBroker) -> None:
    def full(asked: Operation, entity: EntityPath | None) -> Refuse | None:
        if asked is not Operation.MANAGE:
            return None
        return Refuse(lambda: Unavailable(f"queue {entity} is down"))

    broker.fault = full
    pairing = Pairing(primary="south", secondary="north", options=PairOptions(label="south"))
    findings = Findings()

    await _check_backlog(broker, REST, pairing, findings)

    told = [(each.subject, each.text) for each in findings.items]
    assert told[0] == (
        "10 backlog queues, south/x-servicebus-transfer/0 to south/x-servicebus-transfer/9",
        "east.example:8080: queue south/x-servicebus-transfer/0 is down",
    )
    assert told[1][1] == "0 of 10 backlog queues are usable"


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_missing_queue_of_records_is_named_with_its_remedy(is_there: bool) -> None:
    broker = MemoryBroker(VirtualClock(), random.Random(0))
    pairing = Pairing(primary="south", secondary="north", options=PairOptions(label="south"))
    findings = Findings()
    if is_there:
        await provision(broker, "south", 1)

    await _check_records(broker, REST, pairing, findings)
    await _check_records(
        broker, REST, attrs.evolve(pairing, syphon=SyphonOptions(heartbeat_interval=None)), findings
    )

    queue = heartbeat_queue("south")
    start = f"queue {queue} is missing, in which the pair's processes leave their records"
    told = [each.text.partition(":")[0] for each in findings.items]
    assert told == ([] if is_there else [start])
    assert all("`pairgate provision` creates it" in each.text for each in findings.items)


async def test_a_configuration_without_a_needed_key_is_not_called_valid(tmp_path: Path) -> None:
    text = """
[namespaces.west]
url = "servicebus:Endpoint=sb://west.example/;SharedAccessKeyName=x"
"""
    loaded = parse(text, source="x.toml", folder=tmp_path, environ={})

    found = [(each.subject, each.grade, each.text) for each in await check(loaded, Runtime())]
    assert "the configuration is valid" not in str(found)
    assert len([each for each in found if "key" in each[2]]) == 1


async def test_a_namespace_that_answers_503_is_named_with_its_address(
    broker: FaultyBroker,
) -> None:
    refuse(broker, Operation.PROBE, Unavailable("HTTP status 503"))

    assert await check_credentials(broker, REST) == (
        "queue orders: east.example:8080, orders: HTTP status 503"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NotAuthorized("HTTP status 401"),
            "east.example:8080, orders: HTTP status 401; check key and key name, and give the key"
            " the right Send",
        ),
        (trio.TooSlowError(), "east.example:8080: no answer from orders within 60 s"),
        (Unavailable("HTTP status 503"), "east.example:8080, orders: HTTP status 503"),
    ],
)
async def test_a_failed_send_names_address_entity_and_cure(
    broker: FaultyBroker, error: BrokerError | trio.TooSlowError, said: str
) -> None:
    target = OpenNamespace(
        broker=broker, name="namespace north", namespace=REST, home="north", running=False
    )

    failure = _failed("send to", ORDERS, target, error, Ability.SEND)

    assert str(failure).startswith(f"send to orders through namespace north: {said}")


async def test_a_refusal_through_a_gateway_may_be_that_of_its_namespace(
    broker: FaultyBroker,
) -> None:
    target = OpenNamespace(
        broker=broker, name="the gateway at x", namespace=REST, home="north", running=True
    )

    at = attrs.evolve(target, name="the gateway at east.example:8080")
    told = str(_failed("send to", ORDERS, at, Unavailable("HTTP status 503"), Ability.SEND))
    text = str(_failed("send to", ORDERS, target, NotAuthorized("refused (403)"), Ability.SEND))

    assert told == "send to orders through the gateway at east.example:8080: HTTP status 503"
    assert text.endswith(
        "give the key the right Send, or run `pairgate check`, if it isn't the gateway that"
        " refuses, but namespace north"
    )


@pytest.mark.parametrize(
    ("namespace", "encrypts", "said"),
    [
        (RABBITMQ, True, ["diverted messages are signed and encrypted with the key '7'"]),
        (RABBITMQ, False, ["diverted messages are signed with the key '7', and can be read by"]),
        (Namespace(url="embedded:west.db"), False, []),
    ],
)
def test_a_check_says_whether_the_secondarys_owner_can_read_the_backlog(
    namespace: Namespace, encrypts: bool, said: list[str]
) -> None:
    pairing = Pairing(
        primary="north",
        secondary="south",
        options=PairOptions(label="north"),
        envelope_keys=(EnvelopeKey(id="7", key=b"a key"),),
        encrypt=encrypts,
    )
    findings = Findings()

    _add_secrecy(namespace, pairing, findings)

    assert [each.text[: len(text)] for each, text in zip(findings.items, said, strict=True)] == said
    assert all(each.grade is Grade.GOOD for each in findings.items)


async def test_a_primary_that_is_gone_has_the_fingerprint_that_the_state_file_remembers(
    broker: FaultyBroker,
) -> None:
    pairing = Pairing(primary="north", secondary="south", options=PairOptions(label="north"))
    destination, findings = Destination(primary=broker), Findings()
    namespaces = {name: Namespace(name=name, url=f"memory:{name}") for name in ("north", "south")}
    former = Identity("store", "former")
    destination.restore(former)

    await _check_identity(
        broker,
        namespaces["south"],
        Config(namespaces=namespaces, pairing=pairing),
        destination,
        findings,
    )

    assert any(fingerprint(str(former)) in each.text for each in findings.items)
