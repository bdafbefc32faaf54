"""
README.md and the pages of docs/ are true: commands, options, files, settings and links exist, and
the pages keep the rules of their language.
"""

import pkgutil
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from gateway.cli import COMMANDS, command_named, main
from gateway.config.file import parse
from gateway.domain.errors import needs_extra
from tests import house
from tests.harness.secret_files import write_secret
from tests.page_commands import commands
from tests.pages import DOCS, EXAMPLES, PAGES, ROOT, blocks, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
HOW_TO = [page.parent for page in sorted((DOCS / "how-to").rglob("README.md"))]
GLOSSARY = DOCS / "reference" / "glossary.md"
ARCHITECTURE = (DOCS / "explanation" / "architecture.md").read_text()
HEREDOC = re.compile(r"<<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^):]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:gateway|tests|conf|docs|benchmarks|examples)/[\w./-]+)`")
TESTS = re.compile(r"\btests/[\w./-]+")
COMMIT = re.compile(r"`git show ([0-9a-f]+)`")
HEADLESS = re.compile(
    r"(?:^(?:#+ )?|\. |: |\| |- |\*\*)(?:What|Who|Whom|Whoever|Whatever|Whether)\b[^.?|]*",
    re.MULTILINE,
)
SECRET = "c2VjcmV0IG9mIG1hbnksIG1hbnkgYnl0ZXM="
LONGEST_LINE = 200
LONGEST_README = 160

# Words that no page uses for a thing that has a name in the glossary. In two halves, so that a
# renaming by script leaves them as they are.
OLD_WORDS = {
    ("stand", "ing"),
    ("stand", "ings"),
    ("le", "g"),
    ("le", "gs"),
    ("pa", "rk"),
    ("pa", "rks"),
    ("par", "ked"),
    ("rest", "ing"),
    ("res", "ts"),
    ("car", "go"),
    ("err", "ands"),
    ("sh", "elf"),
    ("cr", "ew"),
    ("sti", "nt"),
    ("be", "ll"),
    ("an", "ew"),
    ("oft", "ener"),
    ("who", "ever"),
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_can_be_pasted_is_complete(page: Path) -> None:
    pasted = [words for code in blocks(name_of(page), "sh") for words in commands(code)]

    for name, *arguments in pasted:
        context = command_named(name).make_context(name, arguments, parent=click.Context(main))
        given = context.params.get("config") or ()
        configs = given if isinstance(given, tuple) else (given,)

        assert all((ROOT / each).exists() for each in configs) or page.parent.name == "tutorial"


def test_the_readme_shows_the_first_commands() -> None:
    pasted = {name for code in blocks("README.md", "sh") for name, *_ in commands(code)}

    assert pasted == {"serve", "send", "peek", "receive", "status"}


def test_the_readme_begins_with_the_installation() -> None:
    """As printed it is that of a clone; it says what it will be once it is published."""
    _, install, serve = blocks("README.md", "sh")[0].splitlines()

    assert shlex.split(install, comments=True) == ["pip", "install", "."]
    assert install.endswith(f"pip install {PROJECT['name']}")
    assert serve.startswith("pairgate serve")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_one_way_of_installing(page: Path) -> None:
    """And its blocks call the command by the path that this way gives it."""
    code = re.sub(" +#.*", "", "\n".join(blocks(name_of(page), "sh")))
    ways = re.findall(r"pip install (?:\.|\S*pairgate\S*)$", code, re.MULTILINE)
    calls = set(re.findall(r"^(?:TOKEN=\$\()?(\S*)\bpairgate [a-z]", code, re.MULTILINE))

    assert len(ways) <= 1
    assert not ways or len(calls) <= 1, calls


def test_nothing_tells_to_install_a_package_of_the_same_name() -> None:
    """On the public index it is another project's; an extra is named by its packages."""
    by_name = re.compile(r"pip install [^\n`]*(?<![\w./~-])pairgate(?![\w/-])")
    files = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "conf").rglob("*"), *EXAMPLES]
    files += (ROOT / "gateway").rglob("*.py")
    texts = {str(file): file.read_text(errors="replace") for file in files if file.is_file()}
    named = {
        requirement
        for text in texts.values()
        for line in re.findall(r"pip install ('.*)", text)
        for requirement in re.findall(r"'([\w-]+>=[^']*)'", line)
    }

    assert [name for name, text in texts.items() if by_name.search(text)] == []
    assert named <= {requirement for extra in EXTRAS.values() for requirement in extra}
    assert len(named) >= 4


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_error_of_a_missing_extra_names_all_its_packages(extra: str) -> None:
    _, _, packages = needs_extra(extra).partition(f"`{extra}`: pip install ")

    assert shlex.split(packages) == EXTRAS[extra]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_readme_has_a_client_of_each_protocol() -> None:
    python = "\n".join(blocks("README.md", "python"))

    assert "azure.servicebus" in python
    assert "azure.storage.queue" in python
    assert any("curl" in code for code in blocks("README.md", "sh"))


def test_make_knows_its_targets() -> None:
    makefile = "".join((ROOT / name).read_text() for name in ("Makefile", "release.mk"))
    text = "\n".join(page.read_text() for page in PAGES)
    targets = set(re.findall(r"(?:^|`)make ([\w./-]+)", text, re.MULTILINE))

    assert targets >= {"run", "quick", "test", "check", "bench", "lock"}
    for target in targets:
        # A target may share its rule with others.
        assert re.search(
            rf"^[^\t#\n]*(?<!\S){re.escape(target)}[ \w./-]*:", makefile, re.MULTILINE
        ), target


def test_the_table_has_every_command() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    (table,) = re.findall(r"^\| command \| does \|\n((?:\|.*\n)+)", page, re.MULTILINE)
    first_column = [row.split("|")[1] for row in table.splitlines()]

    assert set(re.findall(r"`([\w-]+)`", " ".join(first_column))) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_compiles(page: Path) -> None:
    for code in [*blocks(name_of(page), "python"), *HEREDOC.findall(page.read_text())]:
        compile(code, page.name, "exec")


def test_the_configuration_of_the_sidecar_is_one_to_serve(tmp_path: Path) -> None:
    environ = dict.fromkeys(("EAST_KEY", "WEST_KEY", "ENVELOPE_KEY"), "a secret of many bytes")
    text = next(
        code
        for code in blocks("docs/how-to/pair/sidecar-service-bus.md", "toml")
        if "[pairing]" in code
    )

    loaded = parse(text, source="sidecar", folder=tmp_path, environ=environ)

    assert loaded.config.pairing
    assert loaded.config.endpoints
    assert loaded.warnings == ()


def test_the_configurations_of_the_tutorial_are_ones_to_serve(tmp_path: Path) -> None:
    primary, secondary, gateway = (
        parse(code, source="tutorial", folder=tmp_path, environ={}).config
        for code in blocks("docs/tutorial/first-outage.md", "toml")
    )

    assert gateway.pairing
    assert all(config.endpoints for config in (primary, secondary, gateway))


@pytest.mark.parametrize(
    ("page", "text"),
    [(name_of(page), text) for page in PAGES for text in blocks(name_of(page), "toml")],
)
def test_a_piece_of_configuration_is_understood(page: str, text: str, tmp_path: Path) -> None:
    """
    The piece is read with its secrets, within the smallest configuration that it can be a piece of.
    """
    environ = dict.fromkeys(re.findall(r'env = "(\w+)"', text), SECRET)
    for name in re.findall(r'key = { file = "([\w.-]+)" }', text):
        write_secret(tmp_path / name, SECRET)
    text = re.sub(r'command = \["[^"]*"', f'command = ["echo", "{SECRET}"', text)

    parse(completed(text), source=page, folder=tmp_path, environ=environ)


def completed(text: str) -> str:
    if "[drill]" in text or "[move]" in text:
        text += "\n[pairing]\n"
    if "[[agent." in text:
        text += '\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
    if "[pairing]" in text and "[namespaces." not in text:
        more = {"primary": "east", "secondary": "west", "label": "east"}
        lines = [f'{name} = "{value}"' for name, value in more.items() if f"{name} =" not in text]
        text = text.replace("[pairing]", "\n".join(["[pairing]", *lines]))
    named = set(re.findall(r'^(?:namespace|primary|secondary|to) = "(\w+)"', text, re.MULTILINE))
    given = set(re.findall(r"^\[namespaces\.(\w+)", text, re.MULTILINE))
    for name in named - given if named or given else {"east"}:
        text += f'\n[namespaces.{name}]\nurl = "embedded:{name}.db"\n'
    return text


def test_the_endpoint_for_the_management_client_has_tls() -> None:
    assert any(
        "tls = {" in code for code in blocks("docs/how-to/connect/connect-a-client.md", "toml")
    )


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        file = page.parent / target if target else page

        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), anchor


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    if page == GLOSSARY:
        return
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", FENCED.sub("", page.read_text()))
    words = set(re.findall(r"[a-z]+", prose))

    assert words & {"".join(halves) for halves in OLD_WORDS} == set()


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_no_sentence_of_a_page_is_headless(page: Path) -> None:
    """A sentence, an entry of a table or of a list begins with its subject."""
    prose = FENCED.sub("", page.read_text())

    assert HEADLESS.findall(prose) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short_outside_of_tables(page: Path) -> None:
    prose = FENCED.sub("", page.read_text()).splitlines()

    assert [line for line in prose if len(line) > LONGEST_LINE and not line.startswith("|")] == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert [name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists()] == []


def test_the_code_in_one_page_names_files_that_are_there_and_each_room() -> None:
    page = (ROOT / "gateway" / "README.md").read_text()
    names = set(re.findall(r"`([\w/]+(?:\.py|/))`", page))
    rooms = {path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py")}

    assert [name for name in names if not (ROOT / "gateway" / name).exists()] == []
    assert rooms - {name.split("/")[0] for name in names} == set()


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, *EXAMPLES], ids=name_of)
def test_modules_that_a_page_runs_are_there(page: Path) -> None:
    """The modules of a page exist, and the tests of its commands of pytest."""
    text = page.read_text()
    modules = [name.replace(".", "/") for name in re.findall(r"python -m ([a-z_.]+)", text)]
    ours = [name for name in modules if name.split("/")[0] in {"benchmarks", "tests", "examples"}]
    tests = [name for line in re.findall(r"-m pytest (.*)", text) for name in TESTS.findall(line)]
    paths = [ROOT / name for name in [*ours, *tests]]

    assert [path for path in paths if not (path.exists() or path.with_suffix(".py").exists())] == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_names_of_python_that_a_page_has_are_there(page: Path) -> None:
    for name in set(re.findall(r"`(gateway\.(?!toml)[A-Za-z_.]+)`", page.read_text())):
        pkgutil.resolve_name(name)


def test_commits_that_pages_show_are_in_the_history() -> None:
    shown = {commit for page in PAGES for commit in COMMIT.findall(page.read_text())}
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no history here, or not all of it")

    assert len(shown) >= 4
    assert [one for one in shown if git("cat-file", "-t", one) != "commit"] == []


def git(*arguments: str) -> str:
    """The output of a command of git; empty where it fails, or where there is no git."""
    command = ["git", "-c", "safe.directory=*", *arguments]
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
    except FileNotFoundError:
        return ""


def test_every_package_is_in_the_architecture() -> None:
    packages = {path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py")}

    assert packages <= set(re.findall(r"`gateway/(\w+)/`", ARCHITECTURE))


def test_a_picture_leaves_out_imports_that_follow_from_others() -> None:
    imports: dict[str, set[str]] = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": {"c"}}

    assert house.picture(imports) == "a ──▶ b, d\n──────────\nb ──▶ c\nd ──▶ c\n──────────\nc\n"


def test_a_circle_can_not_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"in a circle: \['a', 'b'\]"):
        house.picture({"a": {"b"}, "b": {"a"}})


WAYS = ("Send", "Diverted send", "Way home", "Receive")


@pytest.mark.parametrize("way", WAYS)
def test_a_way_of_a_message_is_drawn_and_its_files_are_in_order(way: str) -> None:
    [section] = re.findall(rf"^## {way}\n(.*?)(?=^## )", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    steps = re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", section, re.MULTILINE)

    assert "──▶" in section[: section.index("1. ")]
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= 5
    assert [text for _, text in steps if not FILE.search(text)] == []


def test_every_part_of_the_pages_is_one_of_four_kinds() -> None:
    kinds = {"tutorial", "how-to", "reference", "explanation"}

    assert {page.relative_to(DOCS).parts[0] for page in DOCS.rglob("*.md")} == kinds


@pytest.mark.parametrize("folder", HOW_TO, ids=lambda folder: folder.name)
def test_each_index_of_the_how_to_pages_has_each_page_with_its_title(folder: Path) -> None:
    pages = sorted(page for page in folder.rglob("*.md") if page.name != "README.md")
    links = re.findall(r"^- \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(), re.MULTILINE)

    assert sorted((title, name) for title, name in links) == sorted(
        (page.read_text().partition("\n")[0].removeprefix("# "), str(page.relative_to(folder)))
        for page in pages
    )
