"""The audit of a page in the browser by axe-core: the rules of WCAG 2.2 AA, and best practices."""

from pathlib import Path
from typing import Any, Final

from tests.harness.chromium import Browser

AXE: Final = Path(__file__).parents[2] / ".node" / "node_modules" / "axe-core" / "axe.min.js"
AUDIT: Final = """
axe.run(document, {runOnly: [
    "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"
]}).then(found => found.violations.map(
    each => [each.id, each.nodes.map(node => node.html.slice(0, 200))]
))
"""


def audit(chromium: Browser) -> list[Any]:
    """The violations that axe-core finds, in an isolated world: the page's policy stays."""
    world = chromium.new_world()
    chromium.evaluate(AXE.read_text() + "; 0", world=world)
    found = chromium.evaluate(AUDIT, world=world)
    assert isinstance(found, list)
    return found
