"""
Writes the generated parts of the pages in docs/ again.

    make references
"""

from tests.references.pages import DOCS, PARTS, written

for name, parts in PARTS.items():
    page = DOCS / name
    page.write_text(written(page.read_text(), parts()))
