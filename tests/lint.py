"""
Runs flake8 with flake8-async, in a quarter of its time: `python -m tests.lint FILES`.

Its rules about yields and about functions without an await read a tree that keeps each space. Only
files get one that a look at Python's own tree leaves in doubt. A rule may also change that tree, so
that the next rule gets a new one, whose lines are counted again. Here no rule changes anything, and
all of them get the same tree. flake8's own rules, of which `.flake8` selects none, don't run.
"""

import ast
import sys
from collections.abc import Iterable, Iterator

import flake8_async
from flake8.checker import FileChecker
from flake8.main.cli import main
from flake8_async import Plugin
from flake8_async.runner import Flake8AsyncRunner, Flake8AsyncRunner_cst
from libcst import MetadataWrapper

Function = ast.FunctionDef | ast.AsyncFunctionDef

YIELDS = (ast.Yield, ast.YieldFrom)
WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
# The function around has no part in them: a generator expression waits later.
APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)
MAY_YIELD = {"contextmanager", "asynccontextmanager", "fixture"}  # anywhere

parse, whole_run, all_checks = (
    flake8_async.cst_parse_module_native,
    Plugin.run,
    FileChecker.run_ast_checks,
)


def run(plugin: Plugin) -> Iterable[object]:
    """As `Plugin.run`, with the other tree only where it may show something."""
    if plugin.options.enabled_codes.isdisjoint(suspected(plugin._tree)):
        return Flake8AsyncRunner.run(plugin._tree, plugin.options)
    plugin.module = parse(plugin.module)
    return whole_run(plugin)


def suspected(tree: ast.AST) -> Iterator[str]:
    """Yield the codes of the rules that may find something in that tree."""
    methods: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods.update(node.body)
        elif isinstance(node, Function):
            parts = list(own(node))
            if any(isinstance(each, YIELDS) for each in parts) and not may_yield(node):
                yield "ASYNC101"
            waits = any(isinstance(p, WAITS) or getattr(p, "is_async", False) for p in parts)
            if isinstance(node, ast.AsyncFunctionDef) and node not in methods and not waits:
                yield "ASYNC124"


def own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, but for what is apart from it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, APART):
            yield from own(each)


def may_yield(function: Function) -> bool:
    called = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    names = (getattr(each, "attr", getattr(each, "id", "")) for each in called)
    return not MAY_YIELD.isdisjoint(names)


def run_rules(runner: Flake8AsyncRunner_cst) -> Iterator[object]:
    """As `Flake8AsyncRunner_cst.run`."""
    tree = MetadataWrapper(runner.module, unsafe_skip_copy=True)
    for visitor in (*runner.utility_visitors, *runner.visitors):
        tree.visit(visitor)
        runner.noqas = visitor.noqas
    yield from runner.state.problems


def run_ast_checks(checker: FileChecker) -> None:
    """As `FileChecker.run_ast_checks`, without Pyflakes."""
    checker.plugins.tree[:] = [each for each in checker.plugins.tree if each.obj is Plugin]
    all_checks(checker)


if __name__ == "__main__":
    flake8_async.cst_parse_module_native = lambda source: source
    Plugin.run = run
    Flake8AsyncRunner_cst.run = run_rules
    FileChecker.run_ast_checks = run_ast_checks
    FileChecker.process_tokens = lambda checker: None
    sys.exit(main())
