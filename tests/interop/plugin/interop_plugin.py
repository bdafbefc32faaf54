"""
A pytest plug-in for the tests in the source archive of azure-servicebus. It stands in for the
internal test tools of the SDK's repository (`devtools_testutils`, `servicebus_preparer`), and leads
every `*.servicebus.windows.net` to the gateway's port on this machine. The tests stay as they are.

It runs in the suite's own environment, without Pairgate. Of the environment: `INTEROP_PORT`, an
endpoint with TLS; `INTEROP_RESULTS`, a file that gets the outcome of each test.
"""

import importlib
import inspect
import json
import os
import socket
import sys
import types
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

SUFFIX = ".servicebus.windows.net"
NAMESPACE = "fakeresource"
HOST = NAMESPACE + SUFFIX
ROOT, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
POLICIES = {("Listen",): "listener", ("Send",): "sender"}  # other rights: the root's
PORT = int(os.environ["INTEROP_PORT"])

_resolve = socket.getaddrinfo


def resolve_here(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if name and name.endswith(SUFFIX):
        return _resolve("127.0.0.1", PORT, *rest, **options)
    return _resolve(host, port, *rest, **options)


socket.getaddrinfo = resolve_here
# The AMQP client trusts the authorities of this package, whatever OpenSSL's settings.
importlib.import_module("certifi").where = lambda: os.environ["SSL_CERT_FILE"]


# --- devtools_testutils


def get_credential(*, is_async: bool = False, **_: Any) -> Any:
    package = "aio._base_handler_async" if is_async else "_base_handler"
    module = importlib.import_module(f"azure.servicebus.{package}")
    return module.ServiceBusSharedKeyCredential(ROOT, KEY)


def unchanged(*_: Any, **__: Any) -> Any:
    """A decorator's maker, or a setting of the recorder, that does nothing."""
    return lambda test: test


def recorded(test: Any) -> Any:
    return test


class RecordedCase:
    """Base of the SDK's test classes."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: Any) -> Any:
        return test

    def get_resource_name(self, name: str) -> str:
        return name

    def create_random_name(self, name: str) -> str:
        return f"{name}{uuid.uuid4().hex[:12]}"


def with_values(_: str, **values: str) -> Any:
    """Gives a test the values that it asks for by name: of this namespace, else as they are."""
    known = {
        "servicebus_connection_str": connection_string(ROOT),
        "servicebus_fully_qualified_namespace": HOST,
        "servicebus_sas_policy": ROOT,
        "servicebus_sas_key": KEY,
    }

    def decorate(test: Any) -> Any:
        wanted = inspect.signature(test).parameters
        takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in wanted.values())
        chosen = {
            name: known.get(name, value)
            for name, value in values.items()
            if takes_all or name in wanted
        }
        return wrapped(test, lambda given: chosen, hidden={*chosen, "kwargs", "variables"})

    return decorate


# --- servicebus_preparer


def connection_string(policy: str, entity: str = "") -> str:
    text = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={policy};SharedAccessKey={KEY}"
    return f"{text};EntityPath={entity}" if entity else text


def create(path: str, kind: str, **properties: Any) -> None:
    """Create an entity, over Atom."""
    module = importlib.import_module("azure.servicebus._base_handler")
    token = module.ServiceBusSharedKeyCredential(ROOT, KEY).get_token(f"http://{HOST}/").token
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in properties.items()
    }
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in texts.items())
    schema = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{schema}">{inner}</{kind}></content></entry>'
    )
    request = urllib.request.Request(
        f"https://{HOST}/{path}?api-version=2021-05",
        body.encode(),
        {"Authorization": token, "Content-Type": "application/atom+xml"},
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def new_name(kind: str) -> str:
    return f"{kind}{uuid.uuid4().hex[:10]}"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class Preparer:
    """A decorator that passes prepared values to a test, as arguments with names."""

    def __init__(self, **wanted: Any) -> None:
        self.wanted = wanted

    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        return {}

    def __call__(self, test: Any) -> Any:
        return wrapped(test, self.provide)


class OfNamespace(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        return {
            "servicebus_namespace": Named(NAMESPACE),
            "servicebus_namespace_connection_string": connection_string(ROOT),
            "servicebus_namespace_key_name": ROOT,
            "servicebus_namespace_primary_key": KEY,
            "servicebus_namespace_secondary_key": KEY,
        }


class OfQueue(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        name, wanted = new_name("queue"), self.wanted
        create(
            name,
            "QueueDescription",
            LockDuration=wanted.get("lock_duration", "PT30S"),
            RequiresDuplicateDetection=wanted.get("requires_duplicate_detection", False),
            RequiresSession=wanted.get("requires_session", False),
            DeadLetteringOnMessageExpiration=wanted.get(
                "dead_lettering_on_message_expiration", False
            ),
            EnablePartitioning=wanted.get("enable_partitioning", False),
        )
        return {
            wanted.get("parameter_name", "servicebus_queue"): Named(name),
            "servicebus_queue_connection_string": connection_string(ROOT, name),
            "servicebus_queue_name": name,
        }


class OfTopic(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        name = new_name("topic")
        create(name, "TopicDescription")
        return {"servicebus_topic": Named(name)}


class OfSubscription(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        name = new_name("subscription")
        create(
            f"{given['servicebus_topic'].name}/subscriptions/{name}",
            "SubscriptionDescription",
            LockDuration=self.wanted.get("lock_duration", "PT60S"),
            RequiresSession=self.wanted.get("requires_session", False),
        )
        return {"servicebus_subscription": Named(name)}


class OfRule(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        rights = tuple(self.wanted.get("access_rights", ()))
        policy = connection_string(POLICIES.get(rights, ROOT))
        return {"servicebus_authorization_rule_connection_string": policy}


class OfQueueRule(Preparer):
    def provide(self, given: dict[str, Any]) -> dict[str, Any]:
        policy = connection_string(ROOT, given["servicebus_queue"].name)
        return {"servicebus_queue_authorization_rule_connection_string": policy}


def wrapped(test: Any, provide: Any, hidden: Any = frozenset()) -> Any:
    """The test with more arguments; pytest sees only the arguments that it must fill in itself."""
    if inspect.iscoroutinefunction(test):

        async def run(*rest: Any, **given: Any) -> Any:
            return await test(*rest, **given | provide(given))
    else:

        def run(*rest: Any, **given: Any) -> Any:
            return test(*rest, **given | provide(given))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    signature = inspect.signature(test)
    visible = [
        each
        for each in signature.parameters.values()
        if each.name not in hidden and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    run.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    return run


# --- the modules that the tests import


def module(name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


class AccessRights:
    send, listen, manage = "Send", "Listen", "Manage"


def ignored(name: str) -> Any:
    """Any attribute of a module of settings for recordings does nothing."""
    if name.startswith("__"):
        raise AttributeError(name)
    return unchanged


def install() -> None:
    devtools = module(
        "devtools_testutils",
        AzureMgmtRecordedTestCase=RecordedCase,
        AzureRecordedTestCase=RecordedCase,
        AzureMgmtTestCase=RecordedCase,
        PowerShellPreparer=with_values,
        get_credential=get_credential,
        recorded_by_proxy=recorded,
        __getattr__=ignored,
        __path__=[],
    )
    devtools.aio = module(  # type: ignore[attr-defined]
        "devtools_testutils.aio", recorded_by_proxy_async=recorded
    )
    for name in ("sanitizers", "fake_credentials", "fake_credentials_async"):
        module(f"devtools_testutils.{name}", __getattr__=ignored)
    preparers = {
        "ServiceBusResourceGroupPreparer": Preparer,
        "ServiceBusNamespacePreparer": OfNamespace,
        "ServiceBusQueuePreparer": OfQueue,
        "ServiceBusTopicPreparer": OfTopic,
        "ServiceBusSubscriptionPreparer": OfSubscription,
        "ServiceBusNamespaceAuthorizationRulePreparer": OfRule,
        "ServiceBusQueueAuthorizationRulePreparer": OfQueueRule,
    }
    module(
        "servicebus_preparer",
        SERVICEBUS_ENDPOINT_SUFFIX=SUFFIX,
        **preparers,
        **{f"Cached{name}": preparer for name, preparer in preparers.items()},
    )
    # Imported and not used.
    module("azure.common", AzureHttpError=Exception, AzureConflictHttpError=Exception)
    module("azure.mgmt", __path__=[])
    module("azure.mgmt.servicebus", __path__=[])
    module("azure.mgmt.servicebus.models", AccessRights=AccessRights)


install()


# --- of pytest


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """The recorder of the SDK's repository; here nothing is recorded."""


_found: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
    if report.when == "call" or outcome != "passed":
        _found[report.nodeid] = outcome


def pytest_sessionfinish(session: Any) -> None:
    if not hasattr(session.config, "workerinput"):  # a worker's outcomes are told to its parent
        Path(os.environ["INTEROP_RESULTS"]).write_text(json.dumps(_found))
