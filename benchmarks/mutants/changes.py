"""Makes the mutants of a source, each with a single small change."""

import ast
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, Final

import attrs

LINE: Final = 100  # characters of a description
OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_MUTATED: Final = {"annotation", "returns", "decorator_list", "bases", "format_spec", "ctx"}
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXACT: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
IMPORTS: Final = (ast.Import, ast.ImportFrom)
# Says if a constructor takes a field. Mypy refuses the argument if not, and no test gives it.
TYPED: Final = "init"


@attrs.frozen(kw_only=True)
class Mutant:
    """
    A changed source. `function` is the outermost one that was changed, or the class or module.

    With `body` the change is only in the code that a call of that function runs.
    """

    function: str
    begins: int  # the function's first line, decorators included
    line: int
    lines: range  # of the statement
    text: str  # the changed code, as `tests/mutants.toml` names it
    before: str
    body: bool
    code: CodeType


@attrs.frozen
class _Where:
    names: tuple[str, ...] = ()
    begins: int = 0
    in_function: bool = False
    statement: ast.stmt | None = None
    parents: tuple[ast.AST, ...] = ()


@attrs.frozen
class _Slot:
    """A place in the tree."""

    owner: Any  # a node
    name: str
    index: int | None

    def put(self, value: Any) -> None:
        if self.index is None:
            setattr(self.owner, self.name, value)
        else:
            getattr(self.owner, self.name)[self.index] = value


def mutants(source: str, filename: str) -> Iterator[Mutant]:
    """All mutants of that source, in its order."""
    tree = ast.parse(source, filename)
    for slot, node, where in list(_places(tree, _Where())):
        for replacement in _replacements(node, slot):
            shown = _shown(node, where)
            before = ast.unparse(shown if shown is not None else node)
            slot.put(
                ast.fix_missing_locations(ast.copy_location(replacement, _located(node, where)))
            )
            try:
                code = compile(tree, filename, "exec", dont_inherit=True)
                after = ast.unparse(shown if shown is not None else replacement)
                after = f"without {before}" if isinstance(replacement, ast.Pass) else after
            except SyntaxError:
                continue
            finally:
                slot.put(node)
            statement = where.statement
            assert statement is not None
            yield Mutant(
                function=".".join(where.names) or "<module>",
                begins=where.begins,
                line=getattr(node, "lineno", statement.lineno),
                lines=range(statement.lineno, _header_end(statement) + 1),
                text=after,
                before=before,
                body=where.in_function,
                code=code,
            )


def _located(node: ast.AST, where: _Where) -> ast.AST:
    return next(one for one in (node, *reversed(where.parents)) if hasattr(one, "lineno"))


def _header_end(statement: ast.stmt) -> int:
    """The last line of a statement without the statements in it."""
    body = getattr(statement, "body", None)
    return body[0].lineno if body else statement.end_lineno or statement.lineno


def _shown(node: ast.AST, where: _Where) -> ast.AST | None:
    """The largest part around a change that fits a line; none if it is the changed part itself."""
    shown = None if isinstance(node, ast.expr | ast.stmt) else where.parents[-1]
    for parent in reversed(where.parents):
        compound = hasattr(parent, "body") and not isinstance(parent, ast.IfExp | ast.Lambda)
        if compound or len(ast.unparse(parent)) > LINE:
            break
        shown = parent
    return shown


def _places(node: ast.AST, where: _Where) -> Iterator[tuple[_Slot, ast.AST, _Where]]:
    for name, value in ast.iter_fields(node):
        if name in NOT_MUTATED or (isinstance(node, FUNCTIONS) and name not in {"body", "args"}):
            continue
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            if not isinstance(child, ast.AST) or _is_silent(child, node):
                continue
            inner = _inside(where, node, name, child)
            yield _Slot(node, name, index if several else None), child, inner
            yield from _places(child, inner)


def _inside(where: _Where, node: ast.AST, field: str, child: ast.AST) -> _Where:
    statement = child if isinstance(child, ast.stmt) else where.statement
    inner = attrs.evolve(where, statement=statement, parents=(*where.parents, node))
    if where.in_function or not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return inner
    return attrs.evolve(
        inner,
        names=(*where.names, node.name),
        begins=min([node.lineno, *(each.lineno for each in node.decorator_list)]),
        in_function=isinstance(node, FUNCTIONS) and field == "body",
    )


def _is_silent(child: ast.AST, parent: ast.AST) -> bool:
    """True for docstrings, imports and types, which no test can notice."""
    if isinstance(child, IMPORTS):
        return True
    if isinstance(child, ast.If):
        return isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id in {"TypeVar", "NewType", "cast"}
    if isinstance(child, ast.keyword):
        return child.arg == TYPED
    if isinstance(child, ast.Expr):
        return isinstance(child.value, ast.Constant)
    return isinstance(parent, ast.JoinedStr)


def _replacements(node: ast.AST, slot: _Slot) -> Iterator[ast.AST]:
    changed = type(node)
    if changed in OPERATORS:
        yield OPERATORS[changed]()
    for kind, replace in _KINDS:
        if isinstance(node, kind):
            yield from replace(node, slot)


def _constant(node: ast.Constant, slot: _Slot) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and " " not in value:  # a string with a space is a text for people
        yield ast.Constant(value + "X")
    elif isinstance(value, bytes):
        yield ast.Constant(value + b"X")


def _name(node: ast.Name, slot: _Slot) -> Iterator[ast.AST]:
    if slot.name == "func" and node.id in OPPOSITES:
        yield ast.Name(OPPOSITES[node.id], ast.Load())


def _negation(node: ast.UnaryOp, slot: _Slot) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _condition(node: ast.If | ast.While | ast.IfExp, slot: _Slot) -> Iterator[ast.AST]:
    test = node.test
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], _EXACT)):  # done already
        yield _with(node, test=_not(test))


def _comprehension(node: ast.comprehension, slot: _Slot) -> Iterator[ast.AST]:
    for index, test in enumerate(node.ifs):
        yield _with(node, ifs=[*node.ifs[:index], _not(test), *node.ifs[index + 1 :]])


def _boolean(node: ast.BoolOp, slot: _Slot) -> Iterator[ast.AST]:
    for index in range(len(node.values) if len(node.values) > 2 else 0):
        yield _with(node, values=node.values[:index] + node.values[index + 1 :])


def _call(node: ast.Call, slot: _Slot) -> Iterator[ast.AST]:
    """A keyword is forgotten."""
    for index, keyword in enumerate(node.keywords):
        if keyword.arg not in {None, TYPED} and not _is_made(node):
            yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])


def _is_made(node: ast.Call) -> bool:
    """True for a call that makes a value: its required arguments are left alone."""
    return isinstance(node.func, ast.Name) and node.func.id[:1].isupper()


def _dictionary(node: ast.Dict, slot: _Slot) -> Iterator[ast.AST]:
    """An entry is forgotten, or has another's value."""
    texts = [ast.unparse(value) for value in node.values]
    for index in range(len(node.keys) if len(node.keys) > 1 else 0):
        keys, values = list(node.keys), list(node.values)
        del keys[index], values[index]
        yield _with(node, keys=keys, values=values)
        others = itertools.chain(range(index + 1, len(texts)), range(index))
        other = next((each for each in others if texts[each] != texts[index]), None)
        if other is not None:
            values = list(node.values)
            values[index] = node.values[other]
            yield _with(node, values=values)


def _collection(node: ast.Tuple | ast.Set | ast.List, slot: _Slot) -> Iterator[ast.AST]:
    """Yield changes that leave out a member; unpacked members and types are left alone."""
    loaded = isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)
    if not loaded or slot.name == "slice" or len(node.elts) < 2 or _is_pair(node, slot):
        return
    for index in range(len(node.elts)):
        yield _with(node, elts=node.elts[:index] + node.elts[index + 1 :])


def _is_pair(node: ast.AST, slot: _Slot) -> bool:
    """A tuple of fixed length, which would break wherever it is unpacked."""
    return isinstance(node, ast.Tuple) and slot.name in {"value", "elt", "key", "values"}


def _slice(node: ast.Slice, slot: _Slot) -> Iterator[ast.AST]:
    if node.lower is not None:
        yield _with(node, lower=None)
    if node.upper is not None:
        yield _with(node, upper=None)


def _handler(node: ast.Return, slot: _Slot) -> Iterator[ast.AST]:
    value = node.value
    if value is not None and not (isinstance(value, ast.Constant) and not value.value):
        yield ast.Return(ast.Constant(None))


def _statement(node: ast.stmt, slot: _Slot) -> Iterator[ast.AST]:
    """The mutant without that statement."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or _keeps(node):
        yield ast.Pass()


def _keeps(node: ast.Assign | ast.AnnAssign) -> bool:
    """True if the assignment outlives the call: its target is an attribute or an entry."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(each, ast.Attribute | ast.Subscript) for each in targets)


def _loop_end(node: ast.Break | ast.Continue, slot: _Slot) -> Iterator[ast.AST]:
    yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _not(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _with(node: ast.AST, **changed: Any) -> Any:
    fields: Iterable[tuple[str, Any]] = ast.iter_fields(node)
    return ast.copy_location(type(node)(**{**dict(fields), **changed}), node)


_KINDS: Final[tuple[tuple[Any, Any], ...]] = (
    (ast.Constant, _constant),
    (ast.Name, _name),
    (ast.UnaryOp, _negation),
    (ast.If | ast.While | ast.IfExp, _condition),
    (ast.comprehension, _comprehension),
    (ast.BoolOp, _boolean),
    (ast.Call, _call),
    (ast.Dict, _dictionary),
    (ast.Tuple | ast.Set | ast.List, _collection),
    (ast.Slice, _slice),
    (ast.Return, _handler),
    (
        ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Raise | ast.Delete,
        _statement,
    ),
    (ast.Break | ast.Continue, _loop_end),
)
