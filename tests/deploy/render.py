"""
Renders and validates the files for deployment: the Helm chart, the manifests, the Compose file.

Runs in `.venv-kubernetes`, as a process of its own, and prints one JSON object.
Usage: render.py CHART CASES COMPOSE_SCHEMA COMPOSE_FILE MANIFEST...
"""

import json
import sys
from pathlib import Path

import helm_python
import jsonschema
import kubernetes_validate
import yaml

VERSIONS = ("1.30", "1.37")  # the oldest that the chart allows, and the newest that is known here
THEIRS = {"ScaledObject", "TriggerAuthentication"}  # KEDA's, which Kubernetes has no schema for


def problems_of(objects):
    found = []
    for each in objects:
        if each["kind"] in THEIRS:
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = "/".join(map(str, error.path))
                found.append(f"{each['kind']} {where}: {error.message} ({version})")
    return found


def rendered(chart, values):
    """The text of all templates, or the error of Helm."""
    try:
        chart.validate_schema(values)
        texts = chart.render(values, name="pairgate", namespace="default")
    except helm_python.HelmError as error:
        return {"error": str(error)}
    files = {Path(name).name: text.strip() for name, text in texts.items()}
    text = "\n---\n".join(
        files[name] for name in sorted(files) if name.endswith(".yaml") and files[name]
    )
    objects = [each for each in yaml.safe_load_all(text) if each]
    return {"text": text, "objects": objects, "problems": problems_of(objects)}


def main():
    folder, cases, schema, compose, *manifests = sys.argv[1:]
    with helm_python.Chart.load(folder) as chart:
        found = {name: rendered(chart, values) for name, values in json.loads(cases).items()}
    given = yaml.safe_load(Path(compose).read_text())
    validator = jsonschema.Draft7Validator(json.loads(Path(schema).read_text()))
    plain = {name: [*yaml.safe_load_all(Path(name).read_text())] for name in manifests}
    result = {
        "helm": helm_python.helm_sdk_version(),
        "lint": helm_python.lint(folder),
        "cases": found,
        "compose": {
            "value": given,
            "problems": [each.message for each in validator.iter_errors(given)],
        },
        "manifests": {
            name: {"objects": objects, "problems": problems_of(objects)}
            for name, objects in plain.items()
        },
    }
    json.dump(result, sys.stdout)


main()
