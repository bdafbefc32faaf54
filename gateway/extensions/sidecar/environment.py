"""The variables by which a command finds the gateway beside it."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import ADMIN, ONE_PORT, SERVE, STORAGE_QUEUE
from gateway.config.options import Config
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.storage_queue import EMULATOR_ACCOUNT
from gateway.frontends.auth import EMULATOR_POLICY

REST: Final = "service-bus-http"
SERVED: Final = (ONE_PORT, REST, STORAGE_QUEUE, ADMIN)


def refuse_tls(config: Config) -> None:
    """
    Check that the command can reach the endpoints by an address of this machine.

    Raises:
        Failure: an endpoint has TLS, and no certificate is for 127.0.0.1 and a port of its own.
    """
    for number, endpoint in enumerate(config.endpoints):
        if endpoint.process == SERVE and endpoint.protocol in SERVED and endpoint.tls is not None:
            text = f"endpoints[{number}].tls: no TLS expected: the command is on this machine"
            raise Failure(text, ExitCode.WRONG)


def variables(config: Config, addresses: Mapping[str, str]) -> dict[str, str]:
    """
    The variables for a gateway with these addresses, by protocol.

    Raises:
        Failure: no access policy has a key.
    """
    policy = _policy(config)
    account = next((each for each in config.accounts if each.keys), EMULATOR_ACCOUNT)
    storage = f"http://{addresses[STORAGE_QUEUE]}/{account.name}"
    user, password = quote(policy.name, safe=""), quote(policy.keys[0], safe="")
    return {
        "SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://{addresses[ONE_PORT]};"
        f"SharedAccessKeyName={policy.name};SharedAccessKey={policy.keys[0]};"
        "UseDevelopmentEmulator=true;",
        "SERVICEBUS_REST_URL": f"http://{addresses[REST]}",
        "AMQP_URL": f"amqp://{user}:{password}@{addresses[ONE_PORT]}",
        "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;"
        f"AccountName={account.name};AccountKey={b64encode(account.keys[0]).decode()};QueueEndpoint={storage};",
        "PAIRGATE_URL": f"http://{addresses[ADMIN]}",
    }


def _policy(config: Config) -> AccessPolicy:
    """The policy with a key and the most rights."""
    policies = [each for each in config.access or (EMULATOR_POLICY,) if each.keys]
    if not policies:
        text = "access: a policy with a key expected, for the command's connection strings"
        raise Failure(text, ExitCode.WRONG)
    return max(policies, key=lambda each: (Right.MANAGE in each.rights, len(each.rights)))
