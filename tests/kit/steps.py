"""Steps in the code of the product: a call before each statement, and another behind each call.

The code of a module's functions is replaced, not the functions: whoever has one already runs its steps too. What runs
while that is done goes on without them. `point` is called where CPython looks for a signal, `step` everywhere else.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

__all__ = ["stepping"]

T = TypeVar("T")

_QUICK = frozenset({"bool", "cast", "dict", "int", "isinstance", "len", "list", "max", "min", "range", "super", "type"})


class _Steps(ast.NodeTransformer):
    def _with_steps(self, body: list[ast.stmt], first: str) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            call = ast.Expr(ast.Call(ast.Name("__step__" if out else first, ast.Load()), [], []))
            out += [ast.copy_location(call, statement), cast("ast.stmt", self.visit(statement))]
        return out

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _QUICK:
            return node
        return ast.copy_location(ast.Call(ast.Name("__called__", ast.Load()), [node], []), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        first = "__point__" if isinstance(node, ast.FunctionDef | ast.For | ast.While) else "__step__"
        inside = isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) and not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):  # what decorates it, and its defaults, ran when it was made
            node.body = self._with_steps(node.body, first)
            return node
        for name, value in ast.iter_fields(node):
            if inside and name in ("body", "orelse", "finalbody") and isinstance(value, list):
                setattr(node, name, self._with_steps(value, first if name == "body" else "__step__"))
            elif isinstance(value, list):
                setattr(node, name, [self.visit(each) if isinstance(each, ast.AST) else each for each in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


@functools.cache
def _stepped(file: str) -> dict[tuple[str, int], types.CodeType]:
    """The code of a file's functions with steps, by name and first line."""
    tree = ast.fix_missing_locations(_Steps().visit(ast.parse(Path(file).read_text())))
    return {(each.co_qualname, each.co_firstlineno): each for each in _codes(compile(tree, file, "exec"))}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes(each)


def _functions(owner: Any, module: str) -> Iterator[types.FunctionType]:
    """Those that are defined in a module, or in its classes, also below decorators."""
    for each in list(vars(owner).values()):
        if isinstance(each, type):
            if each.__module__ == module and each is not owner:
                yield from _functions(each, module)
            continue
        for made in (each, *(getattr(each, name, None) for name in ("fget", "fset", "__func__", "func"))):
            below = inspect.unwrap(made) if callable(made) else made
            if isinstance(below, types.FunctionType) and below.__module__ == module:
                yield below


@contextmanager
def stepping(
    step: Callable[[], object],
    point: Callable[[], object],
    modules: Iterable[types.ModuleType],
    *scenarios: Callable[..., object],
) -> Iterator[None]:
    """Within, every statement of these modules, and of a test's own `scenarios`, calls `step` or `point` first."""

    def called(value: T) -> T:
        point()
        return value

    functions = [each for module in modules for each in _functions(module, module.__name__)]
    functions += [each for each in scenarios if isinstance(each, types.FunctionType)]
    before: list[tuple[types.FunctionType, types.CodeType]] = []
    for function in functions:
        code = function.__code__
        if code.co_filename == "<string>":  # made by a decorator
            continue
        function.__globals__.update(__step__=step, __point__=point, __called__=called)
        new = _stepped(code.co_filename)[code.co_qualname, code.co_firstlineno]
        assert new.co_freevars == code.co_freevars, function
        before.append((function, code))
        function.__code__ = new
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code
