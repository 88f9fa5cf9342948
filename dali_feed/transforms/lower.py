"""torchvision's transforms, v1 and v2, and timm's, lowered (translated) to a recipe.

Transforms are recognised by class name and module, so torchvision is never imported here: a user who has a transform
has imported it. A transform that cannot be lowered is an error that names it; nothing is skipped in silence.
"""

from __future__ import annotations

import difflib
import dis
import functools
import importlib
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from dali_feed.errors import TransformError
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.settings import pair

# The table of lowerings: which op a transform of torchvision's or timm's is translated to, by the name of its class.
#
# A line says "file:attribute": the file in this folder, and what in it makes the op. It is text, so lowering loads only
# the files that a recipe uses.


NOTHING = ""  # decoders give an image of three channels already
_SAME = {  # in each file: classes of torchvision's name and ours, whose `of` reads it
    "auto_augment": ("AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"),
    "colour": ("ColorJitter", "Grayscale", "RandomChannelPermutation", "RandomGrayscale", "RandomPhotometricDistort"),
    "convert": ("Normalize",),
    "crops": ("CenterCrop", "Pad", "RandomCrop", "RandomIoUCrop", "RandomZoomOut"),
    "filters": ("GaussianBlur", "GaussianNoise"),
    "resize": ("RandomResizedCrop", "RandomShortestSize", "Resize", "ScaleJitter"),
    "warps": ("ElasticTransform", "RandomAffine", "RandomPerspective"),
}
_POINTWISE = ("AdjustSharpness", "Autocontrast", "Equalize", "Invert", "Posterize", "Solarize")

TORCHVISION = {  # v1 and v2
    **{name: f"{file}:{name}.of" for file, names in _SAME.items() for name in names},
    **dict.fromkeys((f"Random{name}" for name in _POINTWISE), "pointwise:Pointwise.of"),
    **dict.fromkeys(("PILToTensor", "RGB", "ToImage", "ToPureTensor"), NOTHING),
    "ConvertImageDtype": "convert:ToFloat.converting",
    "ImageClassification": "lower:classification",
    "ObjectDetection": "convert:ToFloat.to_tensor",
    "RandomErasing": "erasing:either",
    "RandomHorizontalFlip": "crops:Flip.horizontal",
    "RandomRotation": "warps:rotation",
    "RandomVerticalFlip": "crops:Flip.vertical",
    "SemanticSegmentation": "lower:segmentation",
    "ToDtype": "convert:ToFloat.of",
    "ToTensor": "convert:ToFloat.to_tensor",
}

# Of torchvision's: made from the transform, and from the ops of the transforms inside it.
NESTS = {name: f"nest:{name}.around" for name in ("RandomApply", "RandomChoice", "RandomOrder")}

TIMM = {
    "AugMixAugment": "timm_augment:TimmAugMix.of",
    "AutoAugment": "timm_augment:TimmAutoAugment.of",
    "CenterCropOrPad": "crops:CropOrPad.of",
    "MaybePILToTensor": NOTHING,
    "MaybeToTensor": "convert:ToFloat.to_tensor",
    "RandAugment": "timm_augment:TimmRandAugment.of",
    "RandomCropOrPad": "crops:CropOrPad.of",
    "RandomErasing": "erasing:either_of_timm",
    "RandomResizedCropAndInterpolation": "resize:RandomResizedCrop.of",
    "ResizeKeepRatio": "resize:ResizeKeepRatio.of",
    "ToTensor": "convert:ToFloat.whole_levels",
    "TrimBorder": "crops:TrimBorder.of",
}


@functools.cache
def maker(line: str) -> Callable[..., Any]:
    """The function that a line names: it gives an op, or a tuple of ops; for NOTHING an empty one."""
    if line == NOTHING:
        return lambda _: ()
    file, _, attribute = line.partition(":")
    make: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(f"dali_feed.transforms.{file}"))
    return make


# The error for a transform that cannot be translated: its name as people write it, the nearest that can, the cure.


class NotMadeError(TransformError):
    """A class was given where an object of it is needed: no loader can run that."""


def unknown(one: Any, supported: Iterable[str]) -> TransformError:
    """The error for an object that cannot be lowered."""
    if inspect.isclass(one):
        error = NotMadeError if _makes_transforms(one) else TransformError
        return error(f"transform: {_public(one)} is a class, not a transform; write {one.__name__}(), with parentheses")
    partials = [each for each in (one, getattr(one, "transforms", None)) if isinstance(each, functools.partial)]
    if partials:  # of weights
        preset = partials[0].func
        name = getattr(preset, "__name__", "a function")
        call = "weights.transforms(), with parentheses"
        error = NotMadeError if _makes_transforms(preset) else TransformError
        return error(f"transform: {name} must be called to make a transform; write {call} (or call the partial)")
    kind = type(one)
    near = difflib.get_close_matches(kind.__name__, list(supported), n=1, cutoff=0.5)
    nearest = f" The nearest that is: torchvision's {near[0]}." if near and near[0] != kind.__name__ else ""
    return TransformError(
        f"transform: {_public(kind)} is not supported.{nearest} docs/transforms.md lists all that are; in a"
        " Compose a DataLoader also takes Lambda and functions of an image, and alone a DALI graph function (images,"
        " draws) -> images"
    )


def _makes_transforms(kind: object) -> bool:
    """Whether it is a class whose objects can be called; one whose objects cannot may be a type to wrap images in."""
    return inspect.isclass(kind) and any("__call__" in vars(base) for base in kind.__mro__)


def _public(kind: type) -> str:
    """Its name with the module that people import it from."""
    module = kind.__module__
    for public in ("torchvision.transforms.v2", "torchvision.transforms", "torch.nn", "timm.data"):
        if module.startswith(f"{public}."):
            return f"{public}.{kind.__name__}"
    return f"{module}.{kind.__name__}"


# The presets of torchvision's weights: what `weights.transforms()` gives, as the ops that it is made of.


def classification(transform: Any) -> tuple[Op, ...]:
    """The ops of ImageClassification."""
    crop = CenterCrop(pair(transform, transform.crop_size))
    return Resize.to(transform, transform.resize_size), crop, *_floats(transform)


def segmentation(transform: Any) -> tuple[Op, ...]:
    """The ops of SemanticSegmentation, which may keep the image's size."""
    resized = () if transform.resize_size is None else (Resize.to(transform, transform.resize_size),)
    return *resized, *_floats(transform)


def _floats(transform: Any) -> tuple[Op, ...]:
    return ToFloat.to_tensor(transform), Normalize.of(transform)


# Objects that only hold transforms and pass an image through them: torchvision's reference presets, view makers.
#
# The law: one is taken apart only where its code cannot do anything else. Its `__call__` or `forward` is read first (no
# branches, no methods of its own, no names but a few of Python's, no stores), and then run once on a stand-in for an
# image without methods or attributes, with stand-ins for the transforms it holds, in an object that holds nothing else
# but plain data. The result is the path that every image takes. An object that does not pass stays what it is.


_NAMES = {"range", "list", "tuple", "enumerate", "zip", "len"}
_INNER = {"<listcomp>", "<genexpr>"}
_DATA = (bool, int, float, str, type(None))
_FOR_LOOPS = {"FOR_ITER", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"}
_STORES = {
    *("IMPORT_NAME", "STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "DELETE_ATTR", "PUSH_EXC_INFO", "LOAD_BUILD_CLASS")
}


@dataclass(frozen=True, slots=True)
class Chain:
    """Transforms one after the other."""

    transforms: tuple[Any, ...]


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


def unwrap(one: Any) -> Chain | list[Chain] | None:
    """The transforms that the object passes an image through, a list where it gives several; else None."""
    kind = type(one)
    if isinstance(one, type | types.FunctionType | types.MethodType) or kind.__module__ == "builtins":
        return None
    module = isinstance(vars(one).get("_modules") if hasattr(one, "__dict__") else None, dict)
    call = getattr(kind, "forward" if module else "__call__", None)
    if not isinstance(call, types.FunctionType) or not _hands_on(call, kind) or _has_hooks(one):
        return None
    try:
        passed = call(_stand_in(one, module=module), _Image())
        if type(passed) is _Image:
            return Chain(passed._chain)
        if isinstance(passed, list | tuple) and passed and all(type(each) is _Image for each in passed):
            return [Chain(each._chain) for each in passed]
    except (_NotTakenError, AttributeError, TypeError, ValueError, IndexError, KeyError, RecursionError):
        return None
    return None


def _has_hooks(one: Any) -> bool:
    return any(vars(one).get(name) for name in ("_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl"))


def _stand_in(one: Any, *, module: bool) -> Any:
    """An object with stand-ins for its transforms, and nothing else but plain data. Raises where it has none."""
    kept: dict[str, Any] = {}
    transforms = 0
    for name, value in {**vars(one), **(vars(one)["_modules"] if module else {})}.items():
        several = isinstance(value, list | tuple) or type(value).__name__ == "ModuleList"
        items = list(value.values()) if isinstance(value, dict) else list(value) if several else [value]
        if isinstance(value, _DATA) or (several and all(isinstance(each, _DATA) for each in items)):
            kept[name] = items if isinstance(value, list) else value
        elif items and all(callable(each) and not isinstance(each, type) for each in items):
            stands = list(map(_Stand, items))
            kept[name] = stands if several else stands[0]
            if isinstance(value, dict):
                kept[name] = dict(zip(value, stands, strict=True))
            transforms += len(stands)
    if not transforms:
        raise _NotTakenError
    return types.SimpleNamespace(**kept)


def _hands_on(function: types.FunctionType, kind: type) -> bool:
    """Whether its code can do no more than call what its object holds, in loops over it."""
    own = function.__closure__ or function.__defaults__ or function.__kwdefaults__
    more = function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    renamed = _NAMES.intersection(function.__globals__)
    return function.__code__.co_argcount == 2 and not (own or more or renamed) and _is_plain(function.__code__, kind)


def _is_plain(code: types.CodeType, kind: type) -> bool:
    for each in dis.get_instructions(code):
        name = each.opname
        if ("JUMP" in name and name not in _FOR_LOOPS) or name in _STORES or "YIELD_FROM" in name or "AWAIT" in name:
            return False
        if name in {"LOAD_GLOBAL", "LOAD_NAME"} and each.argval not in _NAMES:
            return False
        if name in {"LOAD_METHOD", "LOAD_ATTR"}:
            own = getattr(kind, str(each.argval), None)
            if isinstance(own, property | types.FunctionType):
                return False
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return all(each.co_name in _INNER and _is_plain(each, kind) for each in inner)


SUPPORTED = ("Compose", "Identity", *sorted([*TORCHVISION, *NESTS]))

Extra = Callable[[Any, tuple[Op, ...]], Op | None]


def is_graph_function(transform: object) -> bool:
    """Whether this is a function of (images, draws) that makes a DALI graph, and not a transform object."""
    if not inspect.isroutine(transform):
        return False
    try:
        parameters = inspect.signature(transform).parameters.values()
    except ValueError:  # some builtins have no signature
        return False
    return sum(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in parameters) == 2


def is_torchvision(transform: object) -> bool:
    """Whether it is of a class of torchvision's own."""
    return f"{type(transform).__module__}.".startswith("torchvision.transforms.")


def is_timm(transform: object) -> bool:
    """Whether it is of a class of timm's own."""
    return f"{type(transform).__module__}.".startswith("timm.data.")


def is_theirs(transform: object) -> bool:
    """Whether it is of a class of torchvision's or timm's."""
    return is_torchvision(transform) or is_timm(transform)


def flatten(transform: Any) -> Iterable[Any]:
    """The single transforms of a Compose, torch's Sequential or an object that only holds transforms, nested ones too.

    Transforms that leave every image as it is are left out.
    """
    name, module = type(transform).__name__, type(transform).__module__
    ours, torchs = is_torchvision(transform), module.startswith("torch.nn.")
    inner: Iterable[Any]
    if name == "Compose" and ours:
        inner = transform.transforms
    elif name == "Sequential" and torchs:
        inner = transform
    elif name == "Identity" and (ours or torchs):
        return
    elif isinstance(transform, Chain):
        inner = transform.transforms
    else:
        apart = None if ours or torchs or is_timm(transform) else unwrap(transform)
        if not isinstance(apart, Chain):
            yield transform
            return
        inner = apart.transforms
    for each in inner:
        yield from flatten(each)


def lower(transform: Any, extra: Extra | None = None) -> Recipe:
    """The recipe of a torchvision transform, a Compose of them, or None (pixels as decoded); a recipe is its own.

    `extra` is called first for each transform, with the ops before it: it gives an op, or None to use the table of
    this room.

    Raises TransformError for a transform, or a setting of one, that cannot be lowered.
    """
    if isinstance(transform, Recipe):
        return transform
    return Recipe() if transform is None else Recipe(_ops(transform, extra))


def _ops(transform: Any, extra: Extra | None, before: tuple[Op, ...] = ()) -> tuple[Op, ...]:
    ops: list[Op] = []
    for one in flatten(transform):
        so_far = (*before, *ops)
        op = None if extra is None else extra(one, so_far)
        ops += (op,) if op is not None else _known(one, extra, so_far)
    return tuple(ops)


def _known(one: Any, extra: Extra | None, before: tuple[Op, ...]) -> tuple[Op, ...]:
    if isinstance(one, Op):  # of a user's own
        return (one,)
    name = type(one).__name__
    if is_torchvision(one) and name in NESTS:
        return (maker(NESTS[name])(one, tuple(_ops(inner, extra, before) for inner in one.transforms)),)
    table = TORCHVISION if is_torchvision(one) else TIMM if is_timm(one) else {}
    if name not in table:
        raise unknown(one, SUPPORTED)
    op: Op | tuple[Op, ...] = maker(table[name])(one)
    return op if isinstance(op, tuple) else (op,)
