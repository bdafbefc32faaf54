"""
The Helm chart, the manifests and the Compose file: rendered by Helm, valid by the schemas of
Kubernetes and Compose, confined, and of one mind with the configurations in them.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import __version__
from gateway.cli import COMMANDS, command_named
from gateway.config.endpoints import ADMIN, SERVE
from gateway.config.file import Loaded, parse
from gateway.extensions.cluster.options import CLUSTER
from tests.deploy.deployed import (
    CASES,
    CHART,
    COMPOSE,
    MANIFEST,
    ROOT,
    SIDECAR,
    WRONG,
    deployed,
    manifest,
)
from tests.pages import blocks

VARIABLE = re.compile(r'env = "(\w+)"')
NAMESPACES = ROOT / "docs" / "reference" / "namespaces.md"
NODE_SECONDS = 5  # in which a Service forgets a pod


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return deployed()


def read(text: str, name: str) -> Loaded:
    environ = dict.fromkeys(VARIABLE.findall(text), "c2VjcmV0IG9mIG1hbnkgYnl0ZXM=")
    return parse(text, source=name, folder=Path("/etc/pairgate"), environ=environ)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(found: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The pods of all manifests, each with its container of Pairgate."""
    cases = [found["cases"][name]["objects"] for name in CASES]
    for objects in [*cases, *(each["objects"] for each in found["manifests"].values())]:
        for deployment in of_kind(objects, "Deployment").values():
            pod = deployment["spec"]["template"]["spec"]
            containers = [*pod.get("initContainers", ()), *pod["containers"]]
            [container] = [each for each in containers if each["name"] == "pairgate"]
            yield pod, container


@pytest.mark.slow
def test_helm_finds_no_fault_in_the_chart(found: dict[str, Any]) -> None:
    assert found["lint"]["errors"] == []
    assert [each["error"] for each in found["lint"]["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", CASES)
def test_the_chart_renders_manifests_that_kubernetes_takes(
    name: str, found: dict[str, Any]
) -> None:
    case = found["cases"][name]

    assert case.get("error") is None
    assert case["problems"] == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused(name: str, found: dict[str, Any]) -> None:
    assert found["cases"][name]["error"]


def test_the_manifest_is_the_rendered_chart(found: dict[str, Any]) -> None:
    text = MANIFEST.read_text()

    assert text == manifest(found), "render it again: python -m tests.deploy.deployed"
    assert [each["problems"] for each in found["manifests"].values()] == [[], []]


def test_kubernetes_takes_the_objects_on_pages(found: dict[str, Any]) -> None:
    kinds = {each["kind"] for each in found["pages"]["objects"]}

    assert found["pages"]["problems"] == []
    assert kinds >= {"Service", "Pod", "ScaledObject", "HorizontalPodAutoscaler"}


def test_gateways_find_each_other_by_the_objects_of_the_page(found: dict[str, Any]) -> None:
    [service] = of_kind(found["pages"]["objects"], "Service").values()
    [pod] = of_kind(found["pages"]["objects"], "Pod").values()
    variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    _, in_kubernetes = blocks("docs/how-to/scale/run-a-cluster.md", "toml")
    [port] = service["spec"]["ports"]
    environ = {
        "PAIRGATE_CLUSTER_SECRET": "a secret of more than thirty-two bytes",
        "PAIRGATE_CLUSTER_ADDRESS": variables["PAIRGATE_CLUSTER_ADDRESS"].replace(
            "$(POD_IP)", "10.0.0.7"
        ),
    }
    text = f'{in_kubernetes}\n[namespaces.east]\nurl = "embedded:east.db"\n'

    config = parse(text, source="page", folder=Path("/etc/pairgate"), environ=environ).config
    cluster = config.of(CLUSTER)

    assert cluster is not None
    assert str(cluster.address) == f"10.0.0.7:{port['port']}"
    assert str(cluster.service) == f"{service['metadata']['name']}:{port['port']}"


def test_the_gateways_of_the_chart_are_a_cluster(found: dict[str, Any]) -> None:
    objects = found["cases"]["a cluster with workload identities"]["objects"]
    service = of_kind(objects, "Service")["pairgate-peers"]["spec"]
    template = of_kind(objects, "Deployment")["pairgate"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    address = {each["name"]: each.get("value") for each in container["env"]}
    policy = of_kind(objects, "NetworkPolicy")["pairgate"]["spec"]
    ways = [
        (peer["podSelector"]["matchLabels"], port["port"])
        for rule in [*policy["ingress"], *policy["egress"]]
        for peer in [*rule.get("from", ()), *rule.get("to", ())]
        for port in rule.get("ports", ())
        if port["port"] == "cluster"
    ]

    assert {"name": "cluster", "containerPort": 5680} in container["ports"]
    assert address["PAIRGATE_CLUSTER_ADDRESS"] == "$(POD_IP):5680"
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert [each["port"] for each in service["ports"]] == [5680]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert ways == [(service["selector"], "cluster")] * 2


def test_the_pods_of_the_chart_may_have_a_workload_identity(found: dict[str, Any]) -> None:
    objects = found["cases"]["a cluster with workload identities"]["objects"]

    for deployment in of_kind(objects, "Deployment").values():
        template = deployment["spec"]["template"]
        assert template["spec"]["serviceAccountName"] == "pairgate"
        assert template["metadata"]["labels"]["azure.workload.identity/use"] == "true"


def test_the_chart_has_the_version_of_the_package(found: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert version == __version__
    assert (chart["name"], chart["version"]) == (project["name"], version)
    assert chart["appVersion"] == version
    images = {container["image"] for _, container in pods(found)}
    assert images == {f"pairgate-mq:{version}", "here/pairgate:2"}


def test_every_pod_is_confined(found: dict[str, Any]) -> None:
    everything = list(pods(found))

    assert len(everything) > len(CASES)
    for pod, container in everything:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert {"startupProbe", "livenessProbe"} <= set(container)
        mounted = {
            each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]
        }
        assert mounted["/etc/pairgate"] is True
        assert mounted["/var/lib/pairgate"] is mounted["/tmp"] is False


def test_every_pod_runs_a_command_that_there_is(found: dict[str, Any]) -> None:
    for _, container in pods(found):
        name, *arguments = container["args"]
        options = {option for each in command_named(name).params for option in each.opts}

        assert name in COMMANDS
        assert {each for each in arguments if each.startswith("--")} <= options


def test_the_configuration_has_the_ports_of_the_pods(found: dict[str, Any]) -> None:
    objects = found["cases"]["everything"]["objects"]
    text = of_kind(objects, "ConfigMap")["pairgate"]["data"]["pairgate.toml"]
    config = read(text, "the chart").config
    deployments, service = of_kind(objects, "Deployment"), of_kind(objects, "Service")["pairgate"]
    processes = {"pairgate": SERVE, "pairgate-syphon": "syphon", "pairgate-listener": "listen"}

    assert config.pairing is not None
    assert set(deployments) == set(processes)
    for name, process in processes.items():
        [container] = deployments[name]["spec"]["template"]["spec"]["containers"]
        ports = {each["containerPort"] for each in container["ports"]}
        bound = {
            int(each.bind.rpartition(":")[2]) for each in config.endpoints_of(process).values()
        }
        assert ports == bound, name
    names = {
        each["name"]
        for each in deployments["pairgate"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert {each["targetPort"] for each in service["spec"]["ports"]} == names
    policy = of_kind(objects, "NetworkPolicy")["pairgate"]["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == names


@pytest.mark.parametrize(
    ("case", "watchers", "ports"),
    [("default", ["monitoring", "keda"], [443, 5671]), ("embedded stores alone", [], [])],
)
def test_the_network_policy_is_for_clients_watchers_and_namespaces_alone(
    case: str, watchers: list[str], ports: list[int], found: dict[str, Any]
) -> None:
    objects = found["cases"][case]["objects"]
    policy = of_kind(objects, "NetworkPolicy")["pairgate"]["spec"]
    own = policy["podSelector"]
    clients, admin = policy["ingress"]
    dns, *namespaces = policy["egress"]

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for deployment in of_kind(objects, "Deployment").values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert own["matchLabels"].items() <= labels.items()
    assert clients["from"] == [{"podSelector": {"matchLabels": {"pairgate-client": "true"}}}]
    assert admin["from"] == [*map(in_namespace, watchers), {"podSelector": own}]
    assert [each["port"] for each in admin["ports"]] == [ADMIN]
    assert dns["to"] == [in_namespace("kube-system")]
    assert {each["port"] for each in dns["ports"]} == {53}
    # A rule without ports would let out everything.
    assert [[each["port"] for each in rule["ports"]] for rule in namespaces] == [ports] * bool(
        ports
    )


def in_namespace(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/metadata.name": name}
    return {"namespaceSelector": {"matchLabels": labels}}


def test_a_pod_has_time_to_leave_and_to_drain(found: dict[str, Any]) -> None:
    objects = found["cases"]["everything"]["objects"]
    deployments = of_kind(objects, "Deployment")
    config = read(
        of_kind(objects, "ConfigMap")["pairgate"]["data"]["pairgate.toml"], "the chart"
    ).config
    gateway = deployments["pairgate"]["spec"]["template"]["spec"]
    leaves = gateway["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    listener = deployments["pairgate-listener"]["spec"]["template"]["spec"]

    assert leaves >= NODE_SECONDS
    assert gateway["terminationGracePeriodSeconds"] > leaves + config.limits.grace
    assert listener["terminationGracePeriodSeconds"] > config.listener.options.grace
    rolling = deployments["pairgate"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}


def test_keda_scales_the_listener_by_figures_of_the_gateway(found: dict[str, Any]) -> None:
    objects = found["cases"]["everything"]["objects"]
    scaled = of_kind(objects, "ScaledObject")["pairgate-listener"]["spec"]
    [service] = of_kind(objects, "Service").values()
    admin = next(each["port"] for each in service["spec"]["ports"] if each["name"] == ADMIN)
    keys = of_kind(objects, "TriggerAuthentication")["pairgate-listener"]["spec"]["secretTargetRef"]

    assert scaled["scaleTargetRef"]["name"] in of_kind(objects, "Deployment")
    assert "replicas" not in of_kind(objects, "Deployment")["pairgate-listener"]["spec"]
    assert scaled["minReplicaCount"] == 0
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "metrics-api"
        url = f"http://pairgate.default.svc:{admin}/scale/orders"
        assert trigger["metadata"]["url"] == url
        assert trigger["authenticationRef"] == {"name": "pairgate-listener"}
    assert [each["metadata"]["valueLocation"] for each in scaled["triggers"]] == [
        "depth",
        "age_seconds",
    ]
    assert [each["parameter"] for each in keys] == ["username", "password"]


def test_a_sidecar_starts_before_its_application_and_ends_after_it(found: dict[str, Any]) -> None:
    [deployment] = found["manifests"][str(SIDECAR)]["objects"]
    pod = deployment["spec"]["template"]["spec"]
    [sidecar], [application] = pod["initContainers"], pod["containers"]

    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["livenessProbe"]["exec"]["command"] == ["pairgate", "status", "--ready"]
    assert "Endpoint=sb://127.0.0.1:5672" in application["env"][0]["value"]


def test_the_compose_file_is_valid_and_its_gateway_confined(found: dict[str, Any]) -> None:
    compose = found["compose"]

    assert compose["problems"] == []
    services = compose["value"]["services"]
    assert set(services) == {"north", "south", "provision", "gateway"}
    for name in ("provision", "gateway"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "65532:65532"
        assert service["command"][0] in COMMANDS
    assert services["gateway"]["healthcheck"]["test"] == ["CMD", "pairgate", "status", "--ready"]
    assert all(port.startswith("127.0.0.1:") for port in services["gateway"]["ports"])
    [tested] = re.findall(r"Run against \S+ and (\d+\.\d+)\.\d+", NAMESPACES.read_text())
    assert {services[name]["image"] for name in ("north", "south")} == {f"rabbitmq:{tested}"}


def test_the_configuration_of_the_compose_file_is_a_pair_of_its_services(
    found: dict[str, Any],
) -> None:
    text = (COMPOSE / "pairgate.toml").read_text()
    config = read(text, "compose").config
    services = found["compose"]["value"]["services"]

    assert config.pairing is not None
    assert (config.pairing.primary, config.pairing.secondary) == ("north", "south")
    assert {"north", "south"} <= set(services)
    published = {int(each.rpartition(":")[2]) for each in services["gateway"]["ports"]}
    bound = {int(each.bind.rpartition(":")[2]) for each in config.endpoints_of(SERVE).values()}
    assert published == bound
    variables = set(VARIABLE.findall(text))
    assert variables <= set(services["gateway"]["environment"])
    example = (COMPOSE / "example.env").read_text()
    assert variables == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
