"""Objects that only hold transforms and pass an image through them: torchvision's reference presets, view makers.

The law: one is taken apart only where its code cannot do anything else. It is read first (no branches, no names but a
few of Python's own, no stores), and then run once on a stand-in for an image without methods or attributes, with
stand-ins for the transforms it holds, in a copy that holds nothing else but plain data. The result is the path that
every image takes. An object that does not pass stays what it is.
"""

from __future__ import annotations

import copy
import dis
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["Chain", "taken_apart"]

_NAMES = {"range", "list", "tuple", "enumerate", "zip", "len"}
_DEPTH = 8  # how deep methods may call one another
_INNER = {"<listcomp>", "<genexpr>"}
_DATA = (bool, int, float, str, type(None))
_FOR_LOOPS = {"FOR_ITER", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"}
_STORES = {
    "IMPORT_NAME",
    "STORE_ATTR",
    "STORE_GLOBAL",
    "STORE_NAME",
    "DELETE_ATTR",
    "PUSH_EXC_INFO",
    "LOAD_BUILD_CLASS",
}


@dataclass(frozen=True, slots=True)
class Chain:
    """Transforms one after the other."""

    transforms: tuple[Any, ...]

    def __call__(self, image: Any) -> Any:
        """The image after all transforms."""
        for transform in self.transforms:
            image = transform(image)
        return image


class _NotTakenError(Exception):
    """It does more than pass an image through transforms."""


class _Image:
    """A stand-in for an image after some transforms; it can only be passed on."""

    __slots__ = ("_chain",)

    def __init__(self, chain: tuple[Any, ...] = ()) -> None:
        self._chain = chain

    def __bool__(self) -> NoReturn:
        raise _NotTakenError

    __len__ = __iter__ = __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __format__ = __bool__  # type: ignore[assignment]


class _Stand:
    """A stand-in for a transform: notes that the image went through it."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, image: Any) -> _Image:
        if type(image) is not _Image:
            raise _NotTakenError
        return _Image((*image._chain, self._transform))


def taken_apart(one: Any) -> Chain | list[Chain] | None:
    """The transforms that the object passes an image through, a list where it gives several; else None."""
    kind = type(one)
    if isinstance(one, type | types.FunctionType | types.MethodType) or kind.__module__ == "builtins":
        return None
    module = isinstance(vars(one).get("_modules") if hasattr(one, "__dict__") else None, dict)
    call = getattr(kind, "forward" if module else "__call__", None)
    if not isinstance(call, types.FunctionType) or not _hands_on(call, kind) or _has_hooks(one):
        return None
    try:
        stand_in = _stand_in(one, module=module)
        if stand_in is None:
            return None
        made = call(stand_in, _Image())
        if type(made) is _Image:
            return Chain(made._chain)
        if isinstance(made, list | tuple) and made and all(type(each) is _Image for each in made):
            return [Chain(each._chain) for each in made]
    except (_NotTakenError, AttributeError, TypeError, ValueError, IndexError, KeyError, RecursionError):
        return None
    return None


def _has_hooks(one: Any) -> bool:
    return any(vars(one).get(name) for name in ("_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl"))


def _stand_in(one: Any, *, module: bool) -> Any:
    """A copy with stand-ins for transforms, and nothing else but plain data; None where there are no transforms."""
    found = {**vars(one), **(vars(one)["_modules"] if module else {})}
    kept: dict[str, Any] = {}
    transforms = 0
    for name, value in found.items():
        if isinstance(value, _DATA):
            kept[name] = value
        elif type(value).__name__ == "ModuleList" or (isinstance(value, list | tuple) and _all(callable, value)):
            kept[name] = [_Stand(each) for each in value]
            transforms += len(kept[name])
        elif isinstance(value, dict) and value and _all(callable, value.values()):
            kept[name] = {key: _Stand(each) for key, each in value.items()}
            transforms += len(value)
        elif callable(value) and not isinstance(value, type):
            kept[name] = _Stand(value)
            transforms += 1
        elif isinstance(value, list | tuple) and _all(lambda each: isinstance(each, _DATA), value):
            kept[name] = copy.copy(value)
    if not transforms:
        return None
    names = {name: getattr(type(one), name) for name in _methods(type(one))}
    return type("_Copy", (), names)() if not kept else _filled(type("_Copy", (), names)(), kept)


def _filled(stand_in: Any, kept: dict[str, Any]) -> Any:
    vars(stand_in).update(kept)
    return stand_in


def _methods(kind: type) -> Iterable[str]:
    return [
        name for name in dir(kind) if isinstance(getattr(kind, name, None), types.FunctionType) and name[:2] != "__"
    ]


def _all(rule: Callable[[Any], bool], values: Iterable[Any]) -> bool:
    return all(map(rule, values))


def _hands_on(function: types.FunctionType, kind: type) -> bool:
    """Whether its code can do no more than call what its object holds, in loops over it."""
    return function.__code__.co_argcount == 2 and _is_plain_method(function, kind, _DEPTH + 1)


def _is_plain(code: types.CodeType, kind: type, depth: int) -> bool:
    if not depth:
        return False
    for each in dis.get_instructions(code):
        name = each.opname
        if ("JUMP" in name and name not in _FOR_LOOPS) or name in _STORES or "YIELD_FROM" in name or "AWAIT" in name:
            return False
        if name in {"LOAD_GLOBAL", "LOAD_NAME"} and each.argval not in _NAMES:
            return False
        if name in {"LOAD_METHOD", "LOAD_ATTR"}:
            method = getattr(kind, str(each.argval), None)
            if isinstance(method, property) or not _is_plain_method(method, kind, depth):
                return False
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return all(each.co_name in _INNER and _is_plain(each, kind, depth - 1) for each in inner)


def _is_plain_method(method: Any, kind: type, depth: int) -> bool:
    if not isinstance(method, types.FunctionType):
        return True  # an attribute of the object itself, or an item of a list
    own = method.__closure__ or method.__defaults__ or method.__kwdefaults__ or _NAMES.intersection(method.__globals__)
    more = method.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return not own and not more and _is_plain(method.__code__, kind, depth - 1)
