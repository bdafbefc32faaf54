"""The results of the mutants, and the explanations of those that survive."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.mutants.changes import Mutant
from benchmarks.mutants.result_log import UNNOTICED

SHARE: Final = 0.9  # of the mutants is noticed at least

Name = tuple[str, str, str]  # module, function, changed code


@attrs.frozen(kw_only=True)
class Result:
    """The result of a mutant; `ended` as in the log."""

    module: str
    mutant: Mutant
    ended: str

    @property
    def survived(self) -> bool:
        return self.ended in UNNOTICED

    @property
    def name(self) -> Name:
        return self.module, self.mutant.function, self.mutant.text


def explanations(path: Path) -> Mapping[Name, str]:
    """`tests/mutants.toml`: why each of these mutants may survive."""
    listed = tomllib.loads(path.read_text()).get("survivor", [])
    return {
        (one["module"], one["function"], code): one["why"]
        for one in listed
        for code in one["codes"]
    }


def table(results: Sequence[Result]) -> Iterator[str]:
    """A line for each module, in Markdown, and the sum."""
    yield "| module | mutants | killed | survivors | share % |"
    yield "| --- | --- | --- | --- | --- |"
    for module in dict.fromkeys(one.module for one in results):
        yield _line(module, [one for one in results if one.module == module])
    yield _line("all", results)


def _line(name: str, results: Sequence[Result]) -> str:
    survived = sum(one.survived for one in results)
    killed = len(results) - survived
    return f"| {name} | {len(results)} | {killed} | {survived} | {100 * share(results):.1f} |"


def share(results: Sequence[Result]) -> float:
    return sum(not one.survived for one in results) / len(results) if results else 1.0


def unexplained(results: Sequence[Result], known: Mapping[Name, str]) -> Iterator[str]:
    """Survivors without an explanation, and explanations of mutants that don't survive."""
    for one in results:
        if one.survived and one.name not in known:
            untested = "" if one.ended == "0" else " [no test runs it]"
            yield (
                f"{one.module}:{one.mutant.line} {one.mutant.function}{untested}\n"
                f"  - {one.mutant.before}\n  + {one.mutant.text}"
            )
    survivors = {one.name for one in results if one.survived}
    for module, function, code in known:
        if (module, function, code) not in survivors and module in {one.module for one in results}:
            yield f"{module} {function}: it is explained, and doesn't survive\n  + {code}"
