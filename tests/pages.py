"""
The pages of the documentation, and the blocks of code on them.

Tests that run a page's blocks get them by `blocks` or `named_blocks`, with the page and the
languages written out: `tests/test_blocks.py` finds the blocks that no test runs by these calls.
"""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "gateway").rglob("README.md")),
    BENCHMARKS / "README.md",
    BENCHMARKS / "proof.md",
    *sorted(DOCS.rglob("*.md")),
]
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
# Also within an item of a list.
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """The page's path from the root of the repository."""
    return str(page.relative_to(ROOT))


def named_blocks_in(text: str) -> list[tuple[str, str]]:
    """The language of each block, and its text without the indentation of a list."""
    return [(name, textwrap.dedent(code)) for _, name, code in BLOCK.findall(text)]


def named_blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """The blocks of a page in these languages, in the order of the page."""
    text = (ROOT / page).read_text()
    return [block for block in named_blocks_in(text) if block[0] in languages]


def blocks(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in this language."""
    return [code for _, code in named_blocks(page, language)]
