"""`[traces]` of the configuration."""

import pytest

from tests.config.texts import ONE, problems


@pytest.mark.parametrize(
    ("traces", "problem"),
    [
        ("endpoint = '127.0.0.1:4318'", "traces.endpoint: http(s)://HOST[:PORT]/PATH expected"),
        ("endpoint = 'http://collector:4318'", "traces.endpoint: http(s)://HOST[:PORT]/PATH"),
        ("endpoint = 'http://user:password@c/v1/traces'", "traces.endpoint: http(s)://HOST"),
        ("sample_ratio = 0.5", "traces.endpoint: is missing"),
        ("endpoint = 'http://c/v1/traces'\nsample_ratio = 2", "traces.sample_ratio: must be <= 1"),
        ("endpoint = 'http://c/v1/traces'\nservice_name = ''", "traces.service_name: "),
        ("endpoint = 'http://c/v1/traces'\nratio = 1", "traces.ratio: unknown key"),
    ],
)
def test_mistakes_about_traces_are_named(traces: str, problem: str) -> None:
    (found,) = problems(f"{ONE}\n[traces]\n{traces}")

    assert found.startswith(problem)


def test_traces_without_their_extra_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.problems.find_spec", lambda _name: None)

    (found,) = problems(f"{ONE}\n[traces]\nendpoint = 'http://c/v1/traces'")

    assert found.startswith("traces: needs the extra `otel`: pip install 'opentelemetry-exporter")
