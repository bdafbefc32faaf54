"""The way to the messages: the gateway that this example runs, as a namespace."""

from gateway.app.runtime import Runtime, Silence
from gateway.config.kinds import Adapter, BrokerDependencies, build, options_class
from gateway.frontends.auth import EMULATOR_POLICY


def open_namespace(address: str) -> Adapter:
    """
    A client of the gateway at HOST:PORT, to be entered. On this machine, where no access is
    configured, it takes the emulator's well-known key.
    """
    url = f"servicebus+http://{EMULATOR_POLICY.name}@{address}"
    runtime = Runtime()
    dependencies = BrokerDependencies(
        clock=runtime.now, rng=runtime.rng("namespace"), observer=Silence()
    )
    return build(url, "billing", dependencies, options_class(url)(key=EMULATOR_POLICY.keys[0]))
