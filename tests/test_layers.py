"""The rules of the house: the allowed imports, the pure packages, the files of the repository."""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.modules import PACKAGE, PORTS, ROOT, modules

SIBLINGS = {"brokers", "frontends", "pairing", "telemetry"}

LISTING = {"extensions/listing", "extensions/tables"}
CORE = (
    SIBLINGS
    | PORTS
    | LISTING
    | {"app", "config", "listening", "store", "net", "wire", "domain", "fair_budget"}
)

# A part may import the parts named after it, and itself. Nothing else of gateway.
# The longest path counts: a folder or a module with a rule of its own is named by its path.
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "store": PORTS | {"brokers/meter", "brokers/lock_tokens", "wire", "domain"},
    "store/engine": {"domain"},
    "checker": {"domain"},
    "wire": {"domain"} | LISTING,
    "wire/amqp/engine": {"wire/amqp"},
    "wire/amqp/sasl": {"wire/amqp"},
    "ports": {"domain"},
    "offering": {"ports", "domain"},
    "capabilities": {"ports", "offering", "deadlines", "domain"},
    "forwarding_broker": {"ports", "offering", "capabilities", "domain"},
    "interception": {"ports", "offering", "capabilities", "forwarding_broker", "domain"},
    "moments": {"ports", "domain"},
    "changes": set(),
    "deadlines": {"domain"},
    "durable": set(),
    "fair_budget": set(),
    "net": {"fair_budget", "wire", "domain"},
    "brokers": PORTS | {"net", "wire", "domain"},
    "frontends": PORTS | LISTING | {"fair_budget", "net", "wire", "domain"},
    "pairing": PORTS | LISTING | {"fair_budget", "domain"},
    "listening": PORTS | {"domain"},
    "listening/scaling": {"domain"},
    "telemetry": PORTS | {"domain"},
    "config/kinds": PORTS | {"brokers", "store", "net", "domain"},
    "config": SIBLINGS
    | LISTING
    | {"listening/options", "listening/scaling", "net", "wire", "domain"},
    "app": SIBLINGS
    | PORTS
    | LISTING
    | {"listening", "store", "config", "net", "wire", "domain", "fair_budget"},
    "listening/process": CORE,
    "listening/agent": CORE,
    "demo": PORTS | {"app", "checker", "config", "brokers", "net", "wire", "domain"},
    "commands": LISTING | {"demo", "listening", "app", "config", "domain", "wire"},
    # Below each extension it is a list of names; each part of the core reads its own parts.
    "extensions/extension": set(),
    "extensions/listing": {"extensions"},
    "extensions/tables": {"extensions/listing", "domain"},
    "extensions": CORE | {"checker", "commands", "demo"},
    "cli": {"commands"} | LISTING,
    "__main__": {"cli"},
    "__init__": set(),
}

MOST_NAMES = 26  # in a folder, besides `MARKERS`
MARKERS = {"__init__.py", "__main__.py", "py.typed", "README.md"}  # they hold no code to read

PURE = (
    "domain",
    "store/engine",
    "listening/scaling",
    "checker",
    "wire",
    "extensions/cluster/handshake",
    "extensions/cluster/requests",
    "extensions/cluster/tokens",
)
IMPURE_MODULES = {
    "apsw",
    "asyncio",
    "h11",
    "http.client",
    "http.server",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "trio",
    "urllib.request",
}
CLASSES_OF_RANDOM = {"Random", "SystemRandom"}

# In two halves, so that this file doesn't contain what it looks for.
REGISTRY_HOSTS = {
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".org"),
    ("crates", ".io"),
    ("docker", ".io"),
    ("ghcr", ".io"),
    ("quay", ".io"),
    ("proxy.golang", ".org"),
}


def tracked_files() -> Iterator[Path]:
    # A CI job's checkout may belong to another user, which git refuses unless told otherwise.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # A file that was deleted and not yet committed is still in the listing.
    yield from (ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file())


def test_every_part_imports_only_what_its_layer_allows() -> None:
    wrong = [
        f"{module.name}.py imports {name}"
        for module in modules()
        for rule in [rule_of(module.name)]
        for name in module.imports
        if name.startswith("gateway.")
        and not any(within(name[8:].replace(".", "/"), part) for part in MAY_IMPORT[rule] | {rule})
    ]

    assert wrong == []


def extension_of(path: str) -> str | None:
    """The extension whose folder the path is in."""
    rooms = path.split("/")
    is_folder = rooms[0] == "extensions" and (PACKAGE.joinpath(*rooms[:2])).is_dir()
    return rooms[1] if is_folder and len(rooms) > 1 else None


def test_nothing_but_the_list_imports_an_extension() -> None:
    """Without its folder and its line in the list, an extension is gone, and all else works."""
    imports = {
        (module.name, found)
        for module in modules()
        if module.name != "extensions/listing"
        for name in module.imports
        if name.startswith("gateway.extensions.")
        for found in [extension_of(name[8:].replace(".", "/"))]
        if found not in {None, extension_of(module.name)}
    }

    assert imports == set()


def test_the_package_of_an_extension_holds_its_parts_by_name_alone() -> None:
    """The list imports each package: what that imports, each process imports at its start."""
    wrong = [
        f"{module.name}.py imports {name}"
        for module in modules()
        if module.name.endswith("/__init__") and extension_of(module.name) is not None
        for name in module.imports
        if name.startswith("gateway.") and not name.startswith("gateway.extensions.extension")
    ]

    assert wrong == []


def within(path: str, part: str) -> bool:
    return f"{path}/".startswith(f"{part}/")


def rule_of(path: str) -> str:
    """The part with a rule that the path belongs to: the innermost one."""
    return max((part for part in MAY_IMPORT if within(path, part)), key=len, default="")


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Each group of modules that import each other, straight or by way of others."""
    sorter = TopologicalSorter(imports)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = list(error.args[1])
        members = set(circle)
        without = {name: set(found) - members for name, found in imports.items()}
        return [circle, *circles(without)]
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types count too: a reader of one file of a circle has to read all."""
    by_name = {f"gateway.{module.name}".replace("/", "."): module.imports for module in modules()}
    imports = {name: by_name.keys() & set(found) for name, found in by_name.items()}

    assert circles(imports) == []


def test_a_circle_of_imports_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}

    assert sorted(sorted(set(circle)) for circle in circles(imports)) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]


def test_every_part_has_a_rule() -> None:
    ruled = {rule_of(module.name) for module in modules()}

    assert ruled == set(MAY_IMPORT)


def test_a_folder_of_the_package_is_read_at_a_glance() -> None:
    """`ls` of a folder shows its content: more names than this need a folder of their own."""
    names: dict[Path, set[str]] = defaultdict(set)
    for path in tracked_files():
        for inner in (path, *path.parents):
            if PACKAGE in inner.parents and inner.name not in MARKERS:
                names[inner.parent].add(inner.name)
    crowded = {
        str(folder.relative_to(ROOT)): len(found)
        for folder, found in names.items()
        if len(found) > MOST_NAMES
    }

    assert names[PACKAGE] >= {"ports.py", "domain"}
    assert crowded == {}


def test_imports_are_written_in_full() -> None:
    wrong = [
        f"{module.name}.py imports {name}"
        for module in modules()
        for name in module.imports
        if name.startswith(".")
    ]

    assert wrong == []


def test_pure_parts_do_no_io() -> None:
    wrong = [
        f"{module.name}.py imports {name}"
        for module in modules()
        if any(within(module.name, part) for part in PURE)
        for name in module.imports
        if name in IMPURE_MODULES or name.split(".")[0] in IMPURE_MODULES
    ]

    assert wrong == []


def test_chance_is_injected() -> None:
    wrong = [
        f"{module.name}.py uses random.{name}"
        for module in modules()
        for name in module.of_random
        if name not in CLASSES_OF_RANDOM
    ]

    assert wrong == []


def test_every_exception_is_caught_only_where_the_contributors_page_says_so() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    [rule] = re.findall(r"^- `except Exception` exists .*?; nowhere else", page, re.M | re.S)
    catching = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^ *except\*? Exception\b", path.read_text(), re.M)
    }

    assert catching == set(re.findall(r"`(gateway/[\w/]+\.py)`", rule))


def test_no_tracked_file_names_a_registry() -> None:
    hosts = [(name + suffix).encode() for name, suffix in REGISTRY_HOSTS]
    wrong = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if any(host in path.read_bytes() for host in hosts)
    ]

    assert wrong == []


def test_locks_name_neither_an_index_nor_a_path() -> None:
    forbidden = re.compile(r"^\s*--(?!hash=)|\w://| @ ", re.MULTILINE)
    locks = [path for path in (ROOT / "locks").iterdir() if path.is_file()]
    wrong = [path.name for path in locks if forbidden.search(path.read_text())]

    assert wrong == []


def test_the_lock_for_node_names_no_source_of_a_package() -> None:
    lock = json.loads((ROOT / "locks" / "node" / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}

    assert [name for name, entry in packages.items() if "resolved" in entry] == []
    assert [name for name, entry in packages.items() if "integrity" not in entry] == []


def test_no_test_module_is_imported_by_another_module() -> None:
    """A part that several test modules need is in a module without tests beside them."""
    root = Path(__file__).parents[1]
    imports = [
        f"{path.relative_to(root)}: {line}"
        for folder in ("tests", "benchmarks")
        for path in sorted((root / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) tests\.(\w+\.)*test_\w+", line)
    ]

    assert imports == []
