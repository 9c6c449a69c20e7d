"""Conditions on lengths under which an exported program may be called, as texts that a cache can keep.

PyTorch makes a function of them. Their texts are the messages of its assertions, such as ``arguments[0].size()[1] >= 5``.
They are read as arithmetic on integers, and never run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from collage.system.syntax_trees import syntax_tree

__all__ = ["guards_of", "hold"]

_SAID = "Guard failed: "
_NAME = "_"
# A condition that no arguments meet.
_UNKNOWN = "unknown"
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.Not: operator.not_},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge},
}
_FUNCTIONS = {"max": max, "min": min, "Max": max, "Min": min}


def guards_of(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return the conditions under which a program may be called. Arguments hold one if it can be read, see ``hold``."""
    function = getattr(program.module(), "_guards_fn", None)
    if function is None:
        return ()
    code = _code_of(function.forward)
    if code is None:
        return (_UNKNOWN,)
    return tuple(one.removeprefix(_SAID) for one in code.co_consts if isinstance(one, str) and one.startswith(_SAID))


def _code_of(function: Any) -> CodeType | None:
    """Return the code of the function that PyTorch made, which it names so and wraps; None if it is not found."""
    if not isinstance(function, FunctionType):
        return None
    if function.__name__ == _NAME:
        return function.__code__
    inner = (_code_of(cell.cell_contents) for cell in function.__closure__ or ())
    return next((code for code in inner if code is not None), None)


def hold(guards: Sequence[str], arguments: Sequence[Any]) -> bool:
    """Return True if arguments meet conditions. Those of unknown form are met by none."""
    try:
        return all(_value(syntax_tree(text, "eval"), arguments) for text in guards)
    except (_Unreadable, SyntaxError, ArithmeticError, LookupError, RecursionError):
        return False


class _Unreadable(Exception):
    """A condition has a form that is not known here."""


def _value(node: ast.AST, arguments: Sequence[Any]) -> Any:
    match node:
        case ast.Expression(body=body):
            return _value(body, arguments)
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, arguments), _value(right, arguments))
        case ast.UnaryOp(op=kind, operand=operand) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(operand, arguments))
        case ast.BoolOp(op=kind, values=values):
            return (all if isinstance(kind, ast.And) else any)(_value(one, arguments) for one in values)
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, arguments), _value(right, arguments))
        case ast.Call(func=ast.Name(id=name), args=values) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(one, arguments) for one in values))
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=place, attr="size"), args=[]), slice=ast.Constant(value=int(dim))
        ):
            return _argument(place, arguments).shape[dim]
        case ast.Subscript():
            return int(_argument(node, arguments))
    raise _Unreadable


def _argument(place: ast.AST, arguments: Sequence[Any]) -> Any:
    match place:
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int(position))):
            return arguments[position]
    raise _Unreadable
