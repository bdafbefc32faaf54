"""
Each block of code on a page is run by a test, or it is named here with the reason.

A test runs a block if it gets it from `tests/pages.py`. It gets all blocks of a page in a language
at once, and unpacks them or goes through them: a new block changes the number, or is run.
`tests/test_readme.py` reads each block of TOML, and only looks at the others.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from tests.pages import EXAMPLES, PAGES, ROOT, name_of, named_blocks

LANGUAGES: Final = ("sh", "console", "python", "js", "json", "yaml", "http")
READERS: Final = {"blocks", "named_blocks"}
# Blocks that no test runs, by page and language: their number, and the reason.
NOT_RUN: Final[Mapping[tuple[str, str], tuple[int, str]]] = {
    ("docs/how-to/connect/accept-tokens.md", "sh"): (
        1,
        "Azure's command line: tests/e2e/test_identity_tokens.py shows commands another token",
    ),
    ("docs/how-to/connect/receive-through-outages.md", "python"): (
        1,
        "tests/e2e/waiting_receiver.py is that loop, and prints what a test reads",
    ),
    ("docs/how-to/connect/receive-through-outages.md", "js"): (
        1,
        "tests/e2e/waiting_receiver.js is that subscription, and prints what a test reads",
    ),
    ("docs/how-to/pair/first-hour.md", "sh"): (
        2,
        "Azure; tests/e2e/test_config_command.py and tests/extensions/drill run the commands",
    ),
    ("docs/how-to/secure/publish-a-release.md", "sh"): (
        3,
        "registries; tests/e2e/test_packages.py makes the files, with a key by the first block",
    ),
    ("docs/how-to/secure/entra-id.md", "sh"): (1, "an installation from the index"),
    ("docs/how-to/run/run-in-containers.md", "sh"): (
        2,
        "Docker: tests/deploy/container_check.py builds and runs the image without it",
    ),
    ("docs/how-to/run/run-in-kubernetes.md", "sh"): (
        2,
        "a cluster: tests/deploy renders the chart",
    ),
    ("docs/how-to/run/run-under-systemd.md", "sh"): (
        2,
        "systemd as init: tests/e2e/test_service_manager.py stands in for it",
    ),
    ("docs/how-to/scale/run-without-a-single-point-of-failure.md", "sh"): (
        1,
        "systemd as init: tests/e2e/test_take_over.py hands over its sockets",
    ),
    ("docs/how-to/operate/trace-messages.md", "sh"): (1, "an installation from the index"),
    ("benchmarks/README.md", "sh"): (1, "a synopsis; the benchmarks take long"),
}


def read_blocks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """
    The page and the language of each call of a reader.

    Raises:
        ValueError: a call takes one block out of those of the page.
    """
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_reader(node.value):
            raise ValueError(f"line {node.lineno}: unpack all blocks of the page")
        if isinstance(node, ast.Call) and _is_reader(node):
            page, *languages = (
                texts.get(each.id) if isinstance(each, ast.Name) else getattr(each, "value", None)
                for each in node.args
            )
            if isinstance(page, str):  # else it goes through many pages, and only looks at them
                yield from ((page, str(language)) for language in languages)


def _is_reader(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS
    )


def test_each_block_of_a_page_is_run_or_has_a_reason() -> None:
    only_look = {ROOT / "tests" / name for name in ("pages.py", "test_readme.py", "test_blocks.py")}
    read = {
        found
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if file not in only_look
        if any(reader in (source := file.read_text()) for reader in READERS)
        for found in read_blocks(ast.parse(source))
    }
    shown = Counter(
        (name, language)
        for name in map(name_of, [*PAGES, *EXAMPLES])
        for language, _ in named_blocks(name, *LANGUAGES)
    )

    not_run = {each: number for each, number in shown.items() if each not in read}
    assert not_run == {each: number for each, (number, _) in NOT_RUN.items()}
    assert read - shown.keys() == {each for each in read if each[1] not in LANGUAGES}
    assert len(read) > 40


def test_a_test_that_takes_one_block_of_several_is_named() -> None:
    tree = ast.parse('PAGE = "docs/a.md"\n[one] = blocks(PAGE, "sh")\ntwo = blocks(PAGE, "js")[0]')

    found = read_blocks(tree)
    raised = ""
    try:
        first = next(found)
        list(found)
    except ValueError as error:
        raised = str(error)

    assert first == ("docs/a.md", "sh")
    assert raised == "line 3: unpack all blocks of the page"
