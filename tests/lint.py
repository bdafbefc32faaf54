"""
Runs flake8 with flake8-async, in half of its time: `python -m tests.lint FILES`.

A rule of flake8-async may change the tree of a file, so that the next rule gets a new tree, whose
lines are counted again. Here no rule changes anything, and all of them get the same tree.
"""

import sys
from collections.abc import Iterator

from flake8.main.cli import main
from flake8_async.runner import Flake8AsyncRunner_cst
from libcst import MetadataWrapper


def run(runner: Flake8AsyncRunner_cst) -> Iterator[object]:
    """As `Flake8AsyncRunner_cst.run`."""
    tree = MetadataWrapper(runner.module, unsafe_skip_copy=True)
    for visitor in (*runner.utility_visitors, *runner.visitors):
        tree.visit(visitor)
        runner.noqas = visitor.noqas
    yield from runner.state.problems


if __name__ == "__main__":
    Flake8AsyncRunner_cst.run = run
    sys.exit(main())
