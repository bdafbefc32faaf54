"""All families, in the order in which they run."""

from typing import Final

from tests.interop.families import artemis, go, java, node, python, rabbitmq
from tests.interop.family import Family

FAMILIES: Final[tuple[Family, ...]] = (
    python.FAMILY,
    node.FAMILY,
    go.FAMILY,
    artemis.FAMILY,
    java.FAMILY,
    java.SPRING,
    java.RETIRED,
    *rabbitmq.FAMILIES,
)
