"""
Puts the changed functions of a file into the module that was imported from it.

So a process that has imported a package runs a small change of it, without importing it again.
Every function object gets the code of its changed source, and stays the same object: modules that
have imported it, wrapped it or put it into a table have the change, too. A value that a function
returned during the import is left as it was.
"""

import gc
from collections.abc import Mapping
from inspect import CO_NEWLOCALS, CO_OPTIMIZED, CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

OF_FUNCTIONS: Final = CO_NEWLOCALS | CO_OPTIMIZED


def changed_functions(before: Path, after: Path) -> dict[CodeType, CodeType] | None:
    """
    The new code of each changed function, by its code before. None if anything else has changed:
    a constant, a default, a field, or which functions there are.
    """
    old, new = (
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True) for path in (before, after)
    )
    changes: dict[CodeType, CodeType] = {}
    return changes if _differ_in_functions(old, new, changes) else None


def change(changes: Mapping[CodeType, CodeType]) -> None:
    """Give each function of this process the code that it has by `changes`."""
    files = {code.co_filename for code in changes}
    gc.unfreeze()  # what is frozen isn't among the objects
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in files:
            each.__code__ = changes.get(each.__code__, each.__code__)
    gc.freeze()


def _differ_in_functions(old: CodeType, new: CodeType, changes: dict[CodeType, CodeType]) -> bool:
    """True if nothing but the bodies of functions differs; adds them to `changes`."""
    if old.co_name != new.co_name:
        return False
    if _is_function(old):
        if _signature(old) != _signature(new):
            return False
        if old != new:  # also if it stands in another line
            changes[old] = new
            # One that was made when its module was imported lives already.
            for one, other in zip(_codes_in(old), _codes_in(new), strict=False):
                _differ_in_functions(one, other, changes)
        return True
    ones, others = _codes_in(old), _codes_in(new)
    return (
        _frame(old) == _frame(new)
        and len(ones) == len(others)
        and all(
            _differ_in_functions(one, other, changes)
            for one, other in zip(ones, others, strict=True)
        )
    )


def _is_function(code: CodeType) -> bool:
    """False for a module, the body of a class, and a comprehension, which ran at the import."""
    is_named = not code.co_name.startswith("<") or code.co_name == "<lambda>"
    return is_named and code.co_flags & OF_FUNCTIONS == OF_FUNCTIONS


def _codes_in(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _signature(code: CodeType) -> tuple[object, ...]:
    """Return its parameters and the variables of outer functions: new code must have the same."""
    count = code.co_argcount + code.co_kwonlyargcount
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & (CO_VARARGS | CO_VARKEYWORDS),
        code.co_varnames[:count],
        code.co_freevars,
    )


def _frame(code: CodeType) -> tuple[object, ...]:
    """All of a code but its lines, and the code in it."""
    consts = [
        None if isinstance(each, CodeType) else (type(each), repr(each)) for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, code.co_exceptiontable, code.co_flags, consts, *names)
