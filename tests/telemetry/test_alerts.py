"""
The alert rules of conf/examples, by promtool: each fires when it should, and only then, and the
operator's page has a section for each.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from gateway.cli import COMMANDS
from tests.harness.promtool import ALERTS, ROOT, check_rules, promtool
from tests.operator_pages import METRICS
from tests.pages import blocks

pytestmark = pytest.mark.slow

PAGE: Final = ROOT / "docs" / "how-to" / "operate" / "answer-an-alert.md"
SECTION: Final = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOLS: Final = {"df", "iostat", "journalctl", "openssl", "ss", "systemctl", "top"}
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
}

ALWAYS: Final = "x300"  # minutes
ZERO, ONE = f"0{ALWAYS}", f"1{ALWAYS}"
SENT: Final = "messaging_client_sent_messages_total"
TOOK: Final = "messaging_client_operation_duration_seconds_bucket"
LAG: Final = "pairgate_event_loop_lag_seconds_bucket"
COMMIT: Final = "pairgate_store_commit_duration_seconds_bucket"
HEALTHY: Final = {
    f'pairgate_entities{{state="{state}"}}': ZERO
    for state in ("suspect", "secondary", "half-open", "pinned")
}


@attrs.frozen
class Case:
    """Series that make an alert fire, the same series in health, and the alert's subject."""

    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    labels: Mapping[str, str] = attrs.field(factory=dict)


def growing(step: float) -> str:
    return f"0+{step}x300"


def slow(name: str, bound: str, **labels: str) -> tuple[dict[str, str], dict[str, str]]:
    """Half of the values above that bound; none above."""
    text = "".join(f',{key}="{value}"' for key, value in labels.items())
    counts = {bound: 30, "9": 60, "+Inf": 60}
    above = {f'{name}{{le="{each}"{text}}}': growing(count) for each, count in counts.items()}
    below = dict.fromkeys(above, growing(60))
    return above, below


def quiet_backlog() -> dict[str, str]:
    return {**HEALTHY, "pairgate_backlog_messages": "900-5x300"}


CASES: Final = {
    "PairgateDown": Case({"up": ZERO}, {"up": ONE}),
    "PairgateAlarm": Case(
        {'pairgate_alarm{event="claim_lost"}': ONE}, {}, {"event": "claim_lost"}
    ),
    "PairgateNamespaceUnreachable": Case(
        {'pairgate_namespace_ability{ability="reach",namespace="east"}': ZERO},
        {
            'pairgate_namespace_ability{ability="reach",namespace="east"}': ONE,
            'pairgate_namespace_ability{ability="manage",namespace="east"}': ZERO,
        },
        {"ability": "reach", "namespace": "east"},
    ),
    "PairgateNamespaceFails": Case(
        {
            'pairgate_namespace_ability{ability="send",namespace="east"}': ZERO,
            'pairgate_namespace_ability{ability="reach",namespace="east"}': ONE,
            'pairgate_namespace_ability{ability="reach",namespace="west"}': ZERO,
        },
        {
            'pairgate_namespace_ability{ability="send",namespace="east"}': ZERO,
            'pairgate_namespace_ability{ability="reach",namespace="east"}': ZERO,
            'pairgate_namespace_ability{ability="manage",namespace="west"}': ZERO,
        },
        {"ability": "send", "namespace": "east"},
    ),
    "PairgateEntitiesFailedOver": Case(
        {**HEALTHY, 'pairgate_entities{state="half-open"}': "2x300"},
        {**HEALTHY, 'pairgate_entities{state="suspect"}': "2x300"},
    ),
    "PairgateEntitiesPinned": Case(
        {**HEALTHY, 'pairgate_entities{state="pinned"}': ONE}, HEALTHY, {"state": "pinned"}
    ),
    "PairgateSendsFail": Case(
        {
            f'{SENT}{{pairgate_outcome="unknown",error_type="NoAnswer"}}': growing(2),
            f'{SENT}{{pairgate_outcome="accepted"}}': growing(100),
        },
        {
            f'{SENT}{{pairgate_outcome="unknown",error_type="Cancelled"}}': growing(50),
            f'{SENT}{{pairgate_outcome="not-sent",error_type="Busy"}}': growing(0.5),
            f'{SENT}{{pairgate_outcome="accepted"}}': growing(100),
        },
    ),
    "PairgateSendsSlow": Case(*slow(TOOK, "2.5", pairgate_accepted_by="primary")),
    "PairgateBacklogLeft": Case(
        {**HEALTHY, "pairgate_backlog_messages": "7x300"}, quiet_backlog()
    ),
    "PairgateNoSyphon": Case({"pairgate_syphons_alive": ZERO}, {"pairgate_syphons_alive": ONE}),
    "PairgateBacklogQueueStuck": Case(
        {
            'pairgate_backlog_queue_messages{queue="east/0"}': "7x300",
            'pairgate_backlog_queue_messages{queue="east/1"}': "9000-10x300",
            "pairgate_backlog_messages": "9007-10x300",
        },
        {
            'pairgate_backlog_queue_messages{queue="east/0"}': "7000-5x300",
            'pairgate_backlog_queue_messages{queue="east/1"}': ZERO,
            "pairgate_backlog_messages": "7000-5x300",
        },
        {"queue": "east/0"},
    ),
    "PairgateSyphonStalled": Case(
        {"pairgate_syphon_stalled": ONE}, {"pairgate_syphon_stalled": ZERO}
    ),
    "PairgateSyphonPaused": Case(
        {"pairgate_syphon_pauses": ONE, "pairgate_backlog_messages": ONE},
        {"pairgate_syphon_pauses": ONE, "pairgate_backlog_messages": ZERO},
    ),
    "PairgateDeadLetters": Case(
        {
            'pairgate_spool_dead_letters{reason="EntityNotFound"}': ONE,
            "pairgate_spool_dead_letters_expired": ZERO,
        },
        {
            'pairgate_spool_dead_letters{reason="EntityNotFound"}': ZERO,
            "pairgate_spool_dead_letters_expired": ZERO,
            'pairgate_backlog_dead_letters{reason="TTLExpiredException"}': ONE,
            "pairgate_backlog_dead_letters_expired": ONE,
        },
    ),
    "PairgateBacklogQueuesUnusable": Case(
        {"pairgate_backlog_queues_usable": "9x300", "pairgate_backlog_queues_wanted": "10x300"},
        {"pairgate_backlog_queues_usable": "10x300", "pairgate_backlog_queues_wanted": "10x300"},
    ),
    "PairgateSpoolInUse": Case({"pairgate_spool_messages": ONE}, {"pairgate_spool_messages": ZERO}),
    "PairgateSpoolAlmostFull": Case(
        {"pairgate_spool_free_bytes": "1073741823x300"},
        {"pairgate_spool_free_bytes": "1073741824x300"},
    ),
    "PairgateInflightFull": Case(
        {"pairgate_inflight_bytes": "81x300", "pairgate_inflight_limit_bytes": "100x300"},
        {
            "pairgate_inflight_bytes": "80x300",
            "pairgate_inflight_limit_bytes": "100x300",
            'pairgate_admission_refused_messages_total{error_type="Busy"}': ZERO,
            'pairgate_admission_refused_messages_total{error_type="MessageTooLarge"}': growing(60),
        },
    ),
    "PairgateOrderLeaseMissed": Case(
        {"pairgate_ordered_missed_sends_total": growing(1)},
        {"pairgate_ordered_missed_sends_total": "7x300"},
    ),
    "PairgateSendsNotForwarded": Case(
        {'pairgate_ordered_forwarded_sends_total{result="unreachable"}': growing(1)},
        {
            'pairgate_ordered_forwarded_sends_total{result="unreachable"}': "7x300",
            'pairgate_ordered_forwarded_sends_total{result="accepted"}': growing(60),
            'pairgate_ordered_forwarded_sends_total{result="refused"}': growing(1),
        },
        {"result": "unreachable"},
    ),
    "PairgateConnectionsFull": Case(
        {
            'pairgate_connections{protocol="amqp"}': "10x300",
            'pairgate_connections_limit{protocol="amqp"}': "1000x300",
            'pairgate_connections_refused_total{protocol="amqp"}': growing(1),
        },
        {
            'pairgate_connections{protocol="amqp"}': "900x300",
            'pairgate_connections_limit{protocol="amqp"}': "1000x300",
            'pairgate_connections_refused_total{protocol="amqp"}': "5x300",
        },
        {"protocol": "amqp"},
    ),
    "PairgateEventLoopLags": Case(*slow(LAG, "0.1")),
    "PairgateStoreSlow": Case(
        *slow(COMMIT, "0.25", namespace="east"), labels={"namespace": "east"}
    ),
    "PairgateCertificateExpires": Case(  # promtool's clock begins in 1970
        {'pairgate_certificate_expiry_time_seconds{file="a.pem",setting="tls"}': "1200000x300"},
        {'pairgate_certificate_expiry_time_seconds{file="a.pem",setting="tls"}': "1300000x300"},
        {"file": "a.pem", "setting": "tls"},
    ),
    "PairgateTokenNotRenewed": Case(
        {'pairgate_token_expiry_time_seconds{namespace="east"}': "600x300"},
        {'pairgate_token_expiry_time_seconds{namespace="east"}': "20000x300"},
        {"namespace": "east"},
    ),
    "PairgateCertificateFileRefused": Case(
        {'pairgate_certificate_files_refused{file="a.pem",setting="tls"}': ONE},
        {'pairgate_certificate_files_refused{file="a.pem",setting="tls"}': ZERO},
        {"file": "a.pem", "setting": "tls"},
    ),
    "PairgateCredentialsRefused": Case(
        {'pairgate_credentials_refused_total{protocol="amqp",reason="expired"}': growing(3)},
        {'pairgate_credentials_refused_total{protocol="amqp",reason="expired"}': growing(1)},
        {"protocol": "amqp", "reason": "expired"},
    ),
    "PairgateHandlerFails": Case(
        {
            'pairgate_listener_failed_messages_total{queue="orders"}': growing(2),
            'pairgate_listener_completed_messages_total{queue="orders"}': growing(10),
        },
        {
            'pairgate_listener_failed_messages_total{queue="orders"}': growing(1),
            'pairgate_listener_completed_messages_total{queue="orders"}': growing(10),
        },
        {"queue": "orders"},
    ),
}  # fmt: skip


def of_a_gateway(series: Mapping[str, str]) -> list[dict[str, str]]:
    """The series as Prometheus stores them after a scrape."""
    found = []
    for name, values in series.items():
        metric, _, labels = name.partition("{")
        both = ",".join(filter(None, ['instance="gw"', 'job="pairgate"', labels.rstrip("}")]))
        found.append({"series": f"{metric}{{{both}}}", "values": values})
    return found


def minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def unit_tests(name: str) -> list[dict[str, Any]]:
    """Just before it is due, nothing; then the alert; and in health never anything."""
    case, rule = CASES[name], RULES[name]
    # Rates need two samples, so that such an alert is pending some minutes later.
    due = minutes(rule.get("for", "0m"))
    kept = {"instance": "gw"}
    fired = {
        "eval_time": f"{due + 15}m",
        "alertname": name,
        "exp_alerts": [
            {
                "exp_labels": {**rule["labels"], **kept, **job_of(rule), **case.labels},
                "exp_annotations": rule["annotations"],
            }
        ],
    }
    early = {"eval_time": f"{max(0, due - 1)}m", "alertname": name, "exp_alerts": []}
    never = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in (0, due + 15)
    ]
    return [
        {
            "name": f"{name} fires",
            "input_series": of_a_gateway(case.fires),
            "interval": "1m",
            "alert_rule_test": [*([early] if due else []), fired],
        },
        {
            "name": f"{name} is quiet",
            "input_series": of_a_gateway(case.quiet),
            "interval": "1m",
            "alert_rule_test": never,
        },
    ]


def job_of(rule: Mapping[str, Any]) -> dict[str, str]:
    """The job of a series: a sum has the labels that it is by; a figure itself keeps its job."""
    return {} if "sum by" in rule["expr"].split("\n")[0] else {"job": "pairgate"}


def test_the_rules_are_valid() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ALERTS)


def test_each_alert_fires_when_it_is_due_and_is_quiet_in_health(tmp_path: Path) -> None:
    assert set(CASES) == set(RULES)

    check_rules(tmp_path, [ALERTS], [each for name in CASES for each in unit_tests(name)])


def test_each_metric_of_an_alert_is_in_the_reference() -> None:
    used = set(re.findall(r"(?:pairgate|messaging)_\w+", ALERTS.read_text())) - {
        "pairgate_accepted_by",
        "pairgate_outcome",
    }

    assert {name for name in used if f"`{name.removesuffix('_bucket')}`" not in METRICS} == set()


def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    [scrapes] = blocks("docs/how-to/operate/watch-and-alert.md", "yaml")
    (tmp_path / "prometheus.yml").write_text(scrapes)

    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.parametrize("name", RULES)
def test_each_alert_has_a_section_for_the_operator_on_call(name: str) -> None:
    page, _, anchor = RULES[name]["annotations"]["runbook_url"].partition("#")
    [text] = [body for title, body in SECTION.findall(PAGE.read_text()) if title == name]

    assert ROOT / "docs" / page == PAGE
    assert anchor == name.lower()
    assert "**Symptom.**" in text
    assert "**Do.**" in text
    assert BLOCK.search(text)


def test_the_page_has_no_section_without_an_alert_and_its_commands_parse() -> None:
    sections = dict(SECTION.findall(PAGE.read_text()))
    typed = [line for code in BLOCK.findall(PAGE.read_text()) for line in code.splitlines()]
    first = [shlex.split(line)[:2] for line in typed]

    assert list(sections) == list(RULES)
    assert {words[0] for words in first} <= TOOLS | {"pairgate"}
    # tests/test_readme.py checks the options of each `pairgate`.
    assert {words[1] for words in first if words[0] == "pairgate"} <= set(COMMANDS)
