"""
The metrics of a running gateway and listener, and their readers: promtool, each query of the
dashboard, and the queries of the examples for KEDA and for Kubernetes' own autoscaler.
"""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import pytest
import trio
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.operations.certificates import make_certificates
from gateway.app.runtime import Runtime
from gateway.telemetry.metrics import exposition
from tests.e2e.commands import get
from tests.e2e.processes import ENVELOPE_VARIABLE, GatewayProcess, Gateways
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE
from tests.harness.promtool import ROOT, check_rules, promtool
from tests.pages import blocks
from tests.wire.pairgate.status import OUTAGE

pytestmark = pytest.mark.slow

DASHBOARD: Final = json.loads((ROOT / "conf/examples/grafana-dashboard.json").read_text())
SCALERS: Final = "docs/how-to/scale/scale-with-kubernetes.md"
# Names in a query that are no metrics of ours: functions and keywords are no words of this form.
NAME: Final = re.compile(r"\b(?:pairgate|messaging)_\w+(?=\{)")
BY: Final = re.compile(r"\bby \(([^)]*)\)")
MATCHER: Final = re.compile(r"[{,](\w+)(?==|!=|=~|!~)")
LEGEND: Final = re.compile(r"\{\{(\w+)\}\}")
# These metrics have no sample while nothing is wrong and nothing waits.
EVENTFUL: Final = {
    "pairgate_alarm",
    "pairgate_backlog_oldest_age_seconds",
    "pairgate_backlog_queue_oldest_age_seconds",
    "pairgate_credentials_refused",
    "pairgate_spool_oldest_age_seconds",
    "pairgate_syphons_last_seen_time_seconds",
}
OF_PROMETHEUS: Final = {"instance", "job", "le"}  # labels of a scrape, and of histograms


def configuration(folder: Path) -> str:
    tls = f'certificate = "{folder}/server.pem", key = "{folder}/server.key"'
    return f"""
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]

[namespaces.west]
url = "embedded:west.db"

[pairing]
primary = "east"
secondary = "west"
spool = "spool.db"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"
tls = {{ {tls} }}

[[endpoints]]
protocol = "admin"
process = "listen"
bind = "127.0.0.1:0"
"""


@attrs.frozen
class Running:
    """A gateway that has seen an order of an operator and a failed send, and a listener."""

    gateway: GatewayProcess
    texts: tuple[str, ...]  # the metrics of both

    def families(self) -> dict[str, Metric]:
        """All metrics, by their names; samples of both processes."""
        found: dict[str, Metric] = {}
        for text in self.texts:
            for family in text_string_to_metric_families(text):
                if family.name in found:
                    found[family.name].samples.extend(family.samples)
                else:
                    found[family.name] = family
        return found


async def metrics_of(port: int) -> str:
    status, body = await trio.to_thread.run_sync(get, port, "/metrics")
    assert status == 200
    return body.decode()


def fail_over(port: int, entity: str) -> None:
    order = json.dumps({"targets": [entity], "force": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/failover", order, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.fixture
async def running(gateways: Gateways, tmp_path: Path) -> Running:
    folder = tmp_path / "tls"
    make_certificates(folder, Runtime.now())
    gateway = await gateways.start(configuration(folder), name="gateway")
    command = ("listen", "orders", "--python", "tests.e2e.handlers:note")
    listener = await gateways.start(gateway.config, name="listener", command=command)
    for body in (b"1", b"poison"):
        assert await send(gateway.address, "orders", body) == (201, "primary")
    assert (await send(gateway.address, "missing", b"1"))[0] == 404
    await trio.to_thread.run_sync(fail_over, gateway.ports[1], "bills")
    assert await send(gateway.address, "bills", b"1") == (201, "backlog")
    with trio.fail_after(PATIENCE):
        # Polled: another process decides.
        while 'error_type="ValueError"' not in (text := await metrics_of(listener.port)):  # noqa: ASYNC110
            await trio.sleep(0.1)
    return Running(gateway, (await metrics_of(gateway.ports[1]), text))


def targets() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard, and the legend of its results."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def filled_in(query: str) -> str:
    """The query as Grafana sends it."""
    return query.replace("$__rate_interval", "5m").replace("$instance", "gw")


def series(families: dict[str, Metric], **labels: str) -> list[dict[str, str]]:
    """The samples as Prometheus would have them after an hour of scrapes."""
    found = {}
    for family in families.values():
        for sample in family.samples:
            told = {**sample.labels, **labels}
            text = ",".join(f"{key}={json.dumps(value)}" for key, value in told.items() if value)
            found[f"{sample.name}{{{text}}}"] = f"{sample.value:f}+1x60"
    return [{"series": name, "values": values} for name, values in found.items()]


def finds_something(query: str) -> dict[str, Any]:
    return {
        "expr": f"clamp_max(count({query}), 1)",
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }


def values_at(value: Any, location: str) -> Any:
    """The value that KEDA reads at a `valueLocation` of GJSON without wildcards."""
    for key in location.split("."):
        value = value[key]
    return value


async def test_metrics_are_well_formed_and_feed_the_dashboard_and_the_scalers(
    running: Running, tmp_path: Path
) -> None:
    families = running.families()

    for text in running.texts:
        assert promtool("check", "metrics", text=text) == ""
    check_the_dashboard(families, tmp_path)
    await check_keda(running.gateway)
    check_the_autoscaler(families, tmp_path)
    await check_the_autoscaler_by_depth(running.gateway, tmp_path)


def check_the_dashboard(families: dict[str, Metric], folder: Path) -> None:
    """Each query names metrics and labels that there are, and finds something."""
    used = {name for query, _ in targets() for name in NAME.findall(query)}
    told = {family.name: family for family in families.values() if family.samples}
    for family in text_string_to_metric_families(exposition(OUTAGE).decode()):
        if family.name in EVENTFUL:
            told.setdefault(family.name, family)
    labels = {
        sample.name: {*sample.labels, *OF_PROMETHEUS}
        for family in told.values()
        for sample in family.samples
    }
    assert used <= set(labels)
    for query, legend in targets():
        known = set().union(*(labels[name] for name in NAME.findall(query)))
        by = {label.strip() for text in BY.findall(query) for label in text.split(",")}
        assert NAME.findall(query)
        assert by | set(MATCHER.findall(query)) <= known, query
        assert set(LEGEND.findall(legend)) <= by | {"instance"}, query
    rules = {
        "interval": "1m",
        "input_series": series(told, instance="gw", job="pairgate"),
        "promql_expr_test": [finds_something(filled_in(query)) for query, _ in targets()],
    }
    check_rules(folder, [], [rules])
    assert len(used) > 40


async def check_keda(gateway: GatewayProcess) -> None:
    """Each figure is a number at the address and the place that the example names."""
    [scaled] = [
        each
        for text in blocks(SCALERS, "yaml")
        for each in yaml.safe_load_all(text)
        if each.get("kind") == "ScaledObject"
    ]
    asked = [
        each["metadata"] for each in scaled["spec"]["triggers"] if each["type"] == "metrics-api"
    ]
    for trigger in asked:
        path = urlsplit(trigger["url"]).path
        status, body = await trio.to_thread.run_sync(get, gateway.ports[1], path)
        value = values_at(json.loads(body), trigger["valueLocation"])
        assert status == 200
        assert isinstance(value, int | float)
        float(trigger["targetValue"])
    assert [each["valueLocation"] for each in asked] == ["depth", "age_seconds"]


def scale_for_prometheus(port: int, path: str) -> tuple[str | None, str]:
    """The content type and the body of an answer to a scrape."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        accepts = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
        connection.request("GET", path, headers={"Accept": f"{accepts},*/*;q=0.2"})
        answer = connection.getresponse()
        return answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def autoscaling(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The adapter's rule of that kind, and the metric of the autoscaler that uses it."""
    parts = [each for text in blocks(SCALERS, "yaml") for each in yaml.safe_load_all(text)]
    [rule] = [rule for each in parts for rule in each.get("rules", {}).get(kind, ())]
    scalers = [each for each in parts if each.get("kind") == "HorizontalPodAutoscaler"]
    [metric] = [
        metric
        for each in scalers
        for metric in each["spec"]["metrics"]
        if metric["type"] == {"custom": "Pods", "external": "External"}[kind]
    ]
    return rule, metric


async def check_the_autoscaler_by_depth(gateway: GatewayProcess, folder: Path) -> None:
    """Check that the scrape has the depth that the adapter's rule and the autoscaler read."""
    parts = [each for text in blocks(SCALERS, "yaml") for each in yaml.safe_load_all(text)]
    [scrape] = [each for part in parts for each in part.get("scrape_configs", ())]
    kind, text = await trio.to_thread.run_sync(
        scale_for_prometheus, gateway.ports[1], scrape["metrics_path"]
    )
    told = series(
        {family.name: family for family in text_string_to_metric_families(text)},
        **scrape["static_configs"][0]["labels"],
    )
    rule, metric = autoscaling("external")
    wanted = metric["external"]["metric"]["selector"]["matchLabels"]
    labels = ",".join(f'{name}="{value}"' for name, value in wanted.items())
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", f'namespace="shop",{labels}')
    query = query.replace("<<.GroupBy>>", "namespace")
    tests = [finds_something(rule["seriesQuery"]), finds_something(query)]

    check_rules(folder, [], [{"interval": "1m", "input_series": told, "promql_expr_test": tests}])
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]


def check_the_autoscaler(families: dict[str, Metric], folder: Path) -> None:
    """The adapter's queries find the pod of the listener, and the autoscaler uses their name."""
    rule, metric = autoscaling("custom")
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="shop",pod="orders-1"')
    query = query.replace("<<.GroupBy>>", "pod")
    # Prometheus adds the labels of the pod.
    told = series(
        {"handled": families["messaging_process_duration_seconds"]},
        namespace="shop",
        pod="orders-1",
    )
    tests = [finds_something(rule["seriesQuery"]), finds_something(query)]

    check_rules(folder, [], [{"interval": "1m", "input_series": told, "promql_expr_test": tests}])
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
