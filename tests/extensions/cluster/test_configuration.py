import json

import pytest

from gateway.app.assembly.others import ProcessPlace
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.extensions.cluster.assembly import ClusterOthers
from gateway.extensions.cluster.joining import make_others
from gateway.extensions.cluster.options import CLUSTER
from tests.config.texts import ENVIRON, ONE, config, problems, warnings

SECTION = """
[cluster]
address = "10.0.0.1:5680"
peers = ["10.0.0.1:5680", "10.0.0.2:5680"]
secrets = [{ env = "LONG_KEY" }]
"""


def cluster(**changes: str) -> str:
    lines = [line for line in SECTION.splitlines() if line.partition(" ")[0] not in changes]
    return "\n".join(
        [ONE, *lines, *(f"{key} = {value}" for key, value in changes.items() if value)]
    )


def test_a_cluster_needs_an_address_peers_and_a_secret():
    options = config(cluster()).of(CLUSTER)

    assert options is not None
    assert options.peers == ("10.0.0.1:5680", "10.0.0.2:5680")
    assert len(options.secrets) == 1
    assert options.secrets[0] not in repr(options)


def test_a_worker_waits_for_others_as_long_as_its_gateway():
    times = {"connect_timeout": '"7s"', "timeout": '"8s"'}
    text = f"workers = 2\n{cluster(**times)}"
    parent = make_others(ProcessPlace(config=config(text), runtime=Runtime()))
    assert isinstance(parent, ClusterOthers)
    told = json.loads(json.dumps(parent.greeting()))
    place = ProcessPlace(config=config(text), runtime=Runtime(), number=1, told=told)

    worker = make_others(place)

    assert isinstance(worker, ClusterOthers)
    options = worker.cluster.options
    assert (options.connect_timeout, options.timeout) == (7.0, 8.0)
    assert (options.address, options.secrets) == (
        parent.cluster.options.address,
        parent.cluster.options.secrets,
    )


def test_without_the_section_there_is_none():
    assert config(ONE).of(CLUSTER) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"address": ""}, "cluster.address: is missing"),
        ({"address": '"10.0.0.1"'}, "cluster.address: '10.0.0.1' is not an address"),
        ({"address": '"0.0.0.0:5680"'}, "cluster.address: the address by which peers connect"),
        ({"address": '"10.0.0.1:0"'}, "cluster.address: the address by which peers connect"),
        ({"peers": '["gateway-2"]'}, "cluster.peers: 'gateway-2' is not an address"),
        ({"peers": ""}, "cluster.peers: is missing; write the addresses of all gateways"),
        ({"service": '"gateways"'}, "cluster.service: 'gateways' is not an address"),
        ({"secrets": ""}, "cluster.secrets: is missing"),
        ({"secrets": "[]"}, "cluster.secrets: Length of 'secrets' must be >= 1: 0"),
        ({"secrets": '["a secret in the file"]'}, "a secret must not be in this file"),
        ({"secrets": '[{ env = "KEY" }]'}, "cluster.secrets: at least 32 bytes expected"),
        ({"max_requests": "0"}, "cluster.max_requests: must be >= 1: 0"),
    ],
)
def test_mistakes_are_named(changes, problem):
    assert problem in "\n".join(problems(cluster(**changes)))


def test_the_port_of_the_cluster_is_no_endpoints():
    endpoint = '[[endpoints]]\nprotocol = "service-bus"\nbind = "10.0.0.1:5680"\n[[access]]\n'
    policy = 'name = "a"\nkey = { env = "KEY" }\nrights = ["Send"]\n'

    assert "cluster.bind: 10.0.0.1:5680 is an endpoint's address" in "\n".join(
        problems(cluster() + "\n" + endpoint + policy)
    )


def test_a_store_of_ones_own_is_doubtful(tmp_path):
    found = "\n".join(warnings(cluster(), tmp_path))

    assert "cluster: the namespace here is a store of this gateway alone" in found


@pytest.mark.parametrize("text", [cluster(), cluster(address="")])
def test_the_environment_tells_a_pod_its_address(text, tmp_path):
    environ = {**ENVIRON, "PAIRGATE_CLUSTER_ADDRESS": "10.0.0.7:5680"}

    loaded = parse(text, source="x.toml", folder=tmp_path, environ=environ)

    options = loaded.config.of(CLUSTER)
    assert options is not None
    assert options.address == "10.0.0.7:5680"


def test_an_address_in_the_environment_makes_no_cluster(tmp_path):
    environ = {"PAIRGATE_CLUSTER_ADDRESS": "10.0.0.7:5680"}

    assert parse(ONE, source="x.toml", folder=tmp_path, environ=environ).config.of(CLUSTER) is None
