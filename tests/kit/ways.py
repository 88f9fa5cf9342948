"""The table of frozen rows: each says how a loader reads, as a dict; `kit.golden` runs it and digests what comes.

    source, payloads, bad    what is read (`kit.shelf.SOURCES`), of which pictures, and whether some are damaged
    shuffle, lanes, batch    the order: False, True or (extent, window); samples of a global batch
    ranks, again, stop       it is read by `ranks` ranks; the state after `stop` batches continues at `again` of them
    epochs                   whole epochs before that; 0 and 1 unless the row says otherwise
    transform, views         names of TRANSFORMS; a list of several is one loader that gives several views
    columns                  a name of COLUMNS
    exact                    pixels hold everywhere: whole numbers are moved, and nothing else is done to them
    alone                    neither rank nor world size is said
    by                       "loader", "torch" (a dataset that only torch can read), "stream" or "dali"

All else goes to `kit.api.loader` as it stands. Not here, because it goes: AVIF, decode="reduced" and "region", float
TIFFs, `Renamed`, torch's steps behind DALI's graph, and what is kept on a disk between runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision.transforms as v1
from kit import api
from torchvision.transforms import InterpolationMode, v2

__all__ = ["COLUMNS", "LONG", "MIXING", "PIPELINES", "ROWS", "SAMPLERS", "STATES", "TRANSFORMS", "Way"]

Way = dict[str, Any]

WORLDS = ((1, 2), (2, 4), (4, 1))
SHUFFLES: dict[str, Any] = {"in order": False, "shuffled": True, "windows": (3, 2)}

_FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
_NORMAL = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def _small(*transforms: Any) -> Any:
    """After a resize to one size, before which nothing is random."""
    return v2.Compose([v2.Resize((24, 24)), *transforms])


def _timm(**options: Any) -> Any:
    from timm.data import create_transform

    return create_transform(24, **options)


def _classification() -> Any:
    from torchvision.transforms._presets import ImageClassification

    return ImageClassification(crop_size=20, resize_size=24)


def _doubled(image: Any) -> Any:
    return image * 2


def _turned(picture: Any) -> Any:
    return picture.transpose(1)


class _Holder:
    """Passes an image through what it holds."""

    def __init__(self) -> None:
        self.one = v2.RandomResizedCrop(20)
        self.other = v2.Compose([v2.RandomHorizontalFlip(), *_FLOATS])

    def __call__(self, image: Any) -> Any:
        return self.other(self.one(image))


def _graph(images: Any, draws: Any) -> Any:
    from nvidia.dali import fn, types

    images = fn.resize(images, size=[18, 18])
    images = fn.rotate(images, angle=draws.uniform(-20, 20), keep_size=True, fill_value=0)
    mirror = fn.cast(draws.coin(0.5), dtype=types.INT32)
    return fn.crop_mirror_normalize(images, mirror=mirror, mean=[124, 116, 104], output_layout="CHW")


TRANSFORMS: dict[str, Callable[[], Any]] = {
    # Whole numbers that are moved alone.
    "cut": lambda: v2.Compose([v2.RandomCrop(16), v2.RandomHorizontalFlip()]),
    "middle": lambda: v2.CenterCrop(12),
    "cut with padding": lambda: v2.RandomCrop(24, padding=4, fill=7),
    "cut that pads": lambda: v2.RandomCrop((36, 34), pad_if_needed=True),
    "cut, reflected": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomCrop(18, padding=3, padding_mode="reflect")]),
    "padded": lambda: v2.Compose([v2.CenterCrop(14), v2.Pad((1, 2, 3, 4), fill=9)]),
    "both flips": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomHorizontalFlip(0.3), v2.RandomVerticalFlip(0.7)]),
    "inverted": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomInvert()]),
    "posterized": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomPosterize(3, 0.6)]),
    "solarized": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomSolarize(100, 0.6)]),
    "channels permuted": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomChannelPermutation()]),
    "nearest crop": lambda: v2.RandomResizedCrop(16, interpolation=InterpolationMode.NEAREST_EXACT),
    "choice of flips": lambda: v2.Compose(
        [v2.CenterCrop(16), v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)])]
    ),
    "flip or not": lambda: v2.Compose([v2.CenterCrop(16), v2.RandomApply([v2.RandomVerticalFlip(1.0)], 0.4)]),
    "in any order": lambda: v2.Compose(
        [v2.CenterCrop(16), v2.RandomOrder([v2.RandomInvert(0.5), v2.RandomPosterize(2, 0.5)])]
    ),
    # Resampling.
    "crop": lambda: v2.RandomResizedCrop(20),
    "crop, wide": lambda: v2.RandomResizedCrop((18, 26), scale=(0.3, 0.9), ratio=(0.5, 2.0)),
    "crop, bicubic": lambda: v2.RandomResizedCrop(20, interpolation=InterpolationMode.BICUBIC),
    "crop, plain": lambda: v2.RandomResizedCrop(20, antialias=False),
    "resize": lambda: v2.Resize((24, 20)),
    "resize, bicubic": lambda: v2.Resize((17, 19), InterpolationMode.BICUBIC),
    "resize, nearest": lambda: v2.Resize((17, 19), InterpolationMode.NEAREST_EXACT),
    "resize to an edge": lambda: v2.Compose([v2.Resize(22), v2.CenterCrop(20)]),
    "resize to an edge, bounded": lambda: v2.Compose([v2.Resize(22, max_size=30), v2.CenterCrop(26)]),
    "resize, cut": lambda: v2.Compose([v2.Resize((30, 30)), v2.RandomCrop(22)]),
    "rotation": lambda: _small(v2.RandomRotation(30)),
    "rotation, bilinear": lambda: _small(v2.RandomRotation((-10, 40), InterpolationMode.BILINEAR)),
    "affine": lambda: _small(v2.RandomAffine(15, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3))),
    "affine, bilinear": lambda: _small(v2.RandomAffine(15, (0.1, 0.2), interpolation=InterpolationMode.BILINEAR)),
    "perspective": lambda: _small(v2.RandomPerspective(0.5, 0.8)),
    # Colour and neighbours.
    "brightness": lambda: _small(v2.ColorJitter(0.4)),
    "contrast": lambda: _small(v2.ColorJitter(contrast=0.4)),
    "saturation": lambda: _small(v2.ColorJitter(saturation=0.4)),
    "hue": lambda: _small(v2.ColorJitter(hue=0.2)),
    "jitter": lambda: _small(v2.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "jitter, sometimes": lambda: _small(v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4)], 0.6)),
    "gray": lambda: _small(v2.Grayscale(3)),
    "one channel": lambda: _small(v2.Grayscale(1)),
    "gray, sometimes": lambda: _small(v2.RandomGrayscale(0.5)),
    "blur": lambda: _small(v2.GaussianBlur(5, (0.3, 1.5))),
    "sharpness": lambda: _small(v2.RandomAdjustSharpness(2.0, 0.6)),
    "autocontrast": lambda: _small(v2.RandomAutocontrast(0.6)),
    "equalize": lambda: _small(v2.RandomEqualize(0.6)),
    "photometric": lambda: _small(v2.RandomPhotometricDistort()),
    "noise": lambda: _small(v2.ToImage(), v2.GaussianNoise(0.1, 0.2)),
    "random order": lambda: _small(v2.RandomOrder([v2.ColorJitter(0.4), v2.GaussianBlur(3), v2.RandomGrayscale(0.5)])),
    # Policies.
    "auto, ImageNet": lambda: _small(v2.AutoAugment()),
    "auto, CIFAR": lambda: _small(v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)),
    "auto, SVHN": lambda: _small(v2.AutoAugment(v2.AutoAugmentPolicy.SVHN)),
    "rand": lambda: _small(v2.RandAugment()),
    "rand, strong": lambda: _small(v2.RandAugment(3, 20, interpolation=InterpolationMode.BILINEAR)),
    "trivial": lambda: _small(v2.TrivialAugmentWide()),
    "augmix": lambda: _small(v2.AugMix()),
    # Floats.
    "train": lambda: v2.Compose([v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), *_FLOATS, _NORMAL]),
    "evaluate": lambda: v2.Compose([v2.Resize(24), v2.CenterCrop(20), *_FLOATS, _NORMAL]),
    "halves": lambda: v2.Compose([v2.Resize((20, 20)), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "bfloat16": lambda: v2.Compose(
        [v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)]
    ),
    "unscaled floats": lambda: v2.Compose([v2.Resize((20, 20)), v2.ToImage(), v2.ToDtype(torch.float32)]),
    "erased": lambda: v2.Compose([v2.RandomResizedCrop(20), *_FLOATS, _NORMAL, v2.RandomErasing(0.7)]),
    "erased by a colour": lambda: _small(*_FLOATS, v2.RandomErasing(0.7, value=(0.1, 0.5, 0.9))),
    "erased by noise": lambda: _small(*_FLOATS, v2.RandomErasing(0.7, value="random")),
    "all of it": lambda: v2.Compose(
        [
            v2.RandomResizedCrop(20),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            *_FLOATS,
            _NORMAL,
            v2.RandomErasing(0.3),
        ]
    ),
    "preset": _classification,
    "v1 train": lambda: v1.Compose(
        [
            v1.RandomResizedCrop(20),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]),
            v1.RandomErasing(0.5),
        ]
    ),
    "v1 cut": lambda: v1.Compose([v1.RandomCrop(18, padding=4), v1.RandomVerticalFlip(), v1.ToTensor()]),
    "v1 evaluate": lambda: v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.ToTensor()]),
    "v1 padded": lambda: v1.Compose(
        [v1.CenterCrop(14), v1.Pad(3), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]
    ),
    "v1 jitter": lambda: v1.Compose([v1.Resize((24, 24)), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor()]),
    "v1 gray": lambda: v1.Compose([v1.Resize((24, 24)), v1.RandomGrayscale(0.5), v1.ToTensor()]),
    "v1 affine": lambda: v1.Compose([v1.Resize((24, 24)), v1.RandomAffine(20, (0.1, 0.1), (0.9, 1.1)), v1.ToTensor()]),
    "v1 rotation": lambda: v1.Compose([v1.Resize((24, 24)), v1.RandomRotation(20), v1.ToTensor()]),
    "v1 perspective": lambda: v1.Compose([v1.Resize((24, 24)), v1.RandomPerspective(0.4, 0.8), v1.ToTensor()]),
    "v1 blur": lambda: v1.Compose([v1.Resize((24, 24)), v1.GaussianBlur(3), v1.ToTensor()]),
    "v1 thresholds": lambda: v1.Compose(
        [
            v1.Resize((24, 24)),
            v1.RandomInvert(0.4),
            v1.RandomPosterize(4, 0.4),
            v1.RandomSolarize(90, 0.4),
            v1.ToTensor(),
        ]
    ),
    "v1 levels": lambda: v1.Compose(
        [
            v1.Resize((24, 24)),
            v1.RandomAutocontrast(0.5),
            v1.RandomEqualize(0.5),
            v1.RandomAdjustSharpness(1.5, 0.5),
            v1.ToTensor(),
        ]
    ),
    "v1 auto": lambda: v1.Compose([v1.Resize((24, 24)), v1.AutoAugment(), v1.ToTensor()]),
    "v1 rand": lambda: v1.Compose([v1.Resize((24, 24)), v1.RandAugment(), v1.ToTensor()]),
    "v1 trivial": lambda: v1.Compose([v1.Resize((24, 24)), v1.TrivialAugmentWide(), v1.ToTensor()]),
    "v1 augmix": lambda: v1.Compose([v1.Resize((24, 24)), v1.AugMix(), v1.ToTensor()]),
    "v1 choice": lambda: v1.Compose(
        [
            v1.Resize((24, 24)),
            v1.RandomChoice([v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0)]),
            v1.RandomApply([v1.ColorJitter(0.5)], 0.5),
            v1.RandomOrder([v1.RandomGrayscale(0.3), v1.GaussianBlur(3)]),
            v1.ToTensor(),
        ]
    ),
    # The user's own.
    "own function": lambda: v2.Compose([v2.RandomResizedCrop(20), *_FLOATS, v2.Lambda(_doubled)]),
    "own function of pictures": lambda: v2.Compose([v2.Resize((20, 20)), v2.Lambda(_turned), v2.ToImage()]),
    "object with transforms": _Holder,
    "graph": lambda: _graph,
    # timm's.
    "timm train": lambda: _timm(is_training=True),
    "timm evaluate": lambda: _timm(crop_pct=0.9),
    "timm squash": lambda: _timm(crop_pct=0.9, crop_mode="squash"),
    "timm border": lambda: _timm(crop_pct=0.9, crop_mode="border"),
    "timm rand": lambda: _timm(is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.5),
    "timm augmix": lambda: _timm(is_training=True, auto_augment="augmix-m5-w3"),
    "timm policy": lambda: _timm(is_training=True, auto_augment="original-mstd0.5"),
    "timm jitter": lambda: _timm(is_training=True, color_jitter=0.4, interpolation="random"),
    "timm erasing": lambda: _timm(is_training=True, re_prob=0.6, re_mode="pixel"),
    "timm erasing, several": lambda: _timm(is_training=True, re_prob=0.6, re_mode="rand", re_count=3),
    "timm levels": lambda: _timm(is_training=True, use_prefetcher=True),
    "timm kept ratio": lambda: _timm(is_training=True, train_crop_mode="rkrr"),
    "timm kept ratio, cut": lambda: _timm(is_training=True, train_crop_mode="rkrc"),
}


# After DALI's graph torch ran these; that goes, so they are the host engine's alone.
_HOST_ALONE = {
    "own function of pictures",
    *("in any order", "perspective", "sharpness", "autocontrast", "equalize", "photometric", "noise", "random order"),
    *("auto, ImageNet", "auto, CIFAR", "auto, SVHN", "rand", "rand, strong", "trivial", "augmix", "erased by noise"),
    *("v1 perspective", "v1 levels", "v1 auto", "v1 rand", "v1 trivial", "v1 augmix", "v1 choice"),
    *("cut, reflected", "timm rand", "timm augmix", "timm policy", "timm erasing", "timm erasing, several"),
    *("timm kept ratio", "timm kept ratio, cut", "erased by a colour"),
}
_WHOLE = list(itertools.takewhile(lambda name: name != "crop", TRANSFORMS))  # those that move whole numbers


def _tokens(text: str) -> list[int]:
    return [ord(c) % 50 + 1 for c in text]


FOLLOWED = (
    "crop",
    "both flips",
    "resize to an edge",
    "cut with padding",
    "cut that pads",
    "padded",
    "rotation",
    "affine",
    "perspective",
    "jitter",
    "train",
    "erased",
    "middle",
    "resize, nearest",
)


def _followers(name: str) -> dict[str, Any]:
    return {
        "image": api.column("Image", "jpg", TRANSFORMS[name]()),
        "mask": api.column("Mask", "seg.pgm", dtype="int64"),
        "boxes": api.column("Boxes", "boxes.json", more=1),
        "points": api.column("Keypoints", "points.json", more=1),
    }


COLUMNS: dict[str, Callable[[], Any]] = {
    "number": lambda: {"n": api.column("Number", "cls")},
    "numbers of types": lambda: {
        "small": api.column("Number", "cls", dtype="int16"),
        "float": api.column("Number", "cls", dtype="float32"),
        "path": api.column("Number", "json:half", dtype="float64"),
    },
    "array": lambda: {"a": api.column("Array", "f32", "float32", (2, 3)), "n": api.column("Number", "cls")},
    "flat array": lambda: {"a": api.column("Array", "f32", "float32")},
    "npy array": lambda: {"a": api.column("Array", "npy")},
    "array by path": lambda: {"a": api.column("Array", "json:list", "int32", (2,))},
    "text": lambda: {"t": api.column("Text", "txt"), "name": api.column("Text", "json:name")},
    "json": lambda: {"j": api.column("Json", "json")},
    "bytes": lambda: {"b": api.column("Bytes", "f32"), "n": api.column("Number", "cls")},
    "decoded bytes": lambda: {"b": api.column("Bytes", "f32", decode=lambda view: len(view) + view[0])},
    "tokens": lambda: {"t": api.column("Tokens", "txt", _tokens, 12)},
    "tokens, left": lambda: {
        "t": api.column("Tokens", "txt", _tokens, 30, pad=99, padding_side="left", truncation_side="left")
    },
    "packed": lambda: {"t": api.column("Packed", "txt", _tokens, 16)},
    "packed, ended": lambda: {"t": api.column("Packed", "txt", _tokens, 16, end=77, pad=3)},
    "packed whole": lambda: {"t": api.column("Packed", "txt", _tokens, 24, split=False)},
    "packed in rows": lambda: {"t": api.column("Packed", "txt", _tokens, 16, rows=5)},
    "either": lambda: {"t": api.column("Text", "caption;txt"), "n": api.column("Number", "label;cls")},
    "as a tuple": lambda: (api.column("Number", "cls"), api.column("Text", "txt")),
    "image and more": lambda: {
        "image": api.column("Image", "png", TRANSFORMS["cut"]()),
        "n": api.column("Number", "cls"),
        "text": api.column("Text", "txt"),
    },
    "table": lambda: {"n": api.column("Number", "label"), "s": api.column("Number", "score", dtype="float32")},
    "table texts": lambda: {"t": api.column("Text", "text"), "n": api.column("Number", "label")},
    "table lists": lambda: {"l": api.column("Array", "list", "int64", (3,)), "t": api.column("Text", "text")},
    "rows": lambda: {"r": api.column("Array", "row"), "n": api.column("Number", "label", dtype="int32")},
    "rows as images": lambda: {"image": api.column("Image", "row", TRANSFORMS["cut"]())},
    "feature": lambda: {
        "n": api.column("Number", "image/class/label"),
        "t": api.column("Text", "text"),
        "s": api.column("Array", "score", "float32", (2,)),
    },
    "sample": lambda: {"n": api.column("Number", "label"), "t": api.column("Text", "text")},
    "inside": lambda: {"n": api.column("Number", "n"), "t": api.column("Text", "body.text")},
    "inside, arrays": lambda: {"l": api.column("Array", "body.list", "float32", (2,))},
    "raw inside": lambda: {
        "n": api.column("Number", "n"),
        "image": api.column("Image", "body.raw", TRANSFORMS["cut"]()),
    },
    "npy value": lambda: {"a": api.column("Array", "array", "float64", (2, 3))},
    "avro": lambda: {"n": api.column("Number", "n"), "t": api.column("Text", "text")},
    "protobuf": lambda: {"s": api.column("Number", "seconds"), "n": api.column("Number", "nanos")},
    "key and header": lambda: {"key": api.column("Bytes", "key"), "label": api.column("Number", "label")},
    "two images": lambda: {
        "a": api.column("Image", "jpg", TRANSFORMS["crop"]()),
        "b": api.column("Image", "second.png", TRANSFORMS["cut"]()),
        "n": api.column("Number", "cls"),
    },
    "two images, drawn alike": lambda: {
        "a": api.column("Image", "jpg", TRANSFORMS["jitter"]()),
        "b": api.column("Image", "second.png", TRANSFORMS["jitter"](), draws="a"),
    },
    **{f"followers, {name}": functools.partial(_followers, name) for name in FOLLOWED},
    "followers, counted": lambda: {
        "image": api.column("Image", "jpg", TRANSFORMS["crop"]()),
        "boxes": api.column("Boxes", "boxes.json", more=1, most=4, min_size=1.0),
        "points": api.column("Keypoints", "points.json", more=1, most=3),
    },
    "followers, xywh": lambda: {
        "image": api.column("Image", "jpg", TRANSFORMS["both flips"]()),
        "boxes": api.column("Boxes", "boxes.json", format="xywh", more=1),
    },
    "followers, cxcywh": lambda: {
        "image": api.column("Image", "jpg", TRANSFORMS["crop"]()),
        "boxes": api.column("Boxes", "boxes.json", format="cxcywh", more=1),
    },
}


def _distributed() -> Any:
    from torch.utils.data import DistributedSampler

    indices: Any = list(range(41))
    return DistributedSampler(indices, num_replicas=2, rank=1, shuffle=True, seed=3)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "few": lambda: [5, 1, 0, 36, 9, 10, 3, 3, 30, 12, 20],
    "backwards": lambda: list(reversed(range(41))),
    "twice": lambda: [n % 41 for n in range(60)],
    "sequential": lambda: torch.utils.data.SequentialSampler(range(41)),
    "distributed": _distributed,
}

MIXING: dict[str, Callable[[], Any]] = {
    "mixup": lambda: v2.MixUp(alpha=0.4, num_classes=41),
    "cutmix": lambda: v2.CutMix(num_classes=41),
    "either": lambda: v2.RandomChoice([v2.CutMix(num_classes=41), v2.MixUp(alpha=0.2, num_classes=41)]),
    "ours": lambda: _mixing(mixup=0.2, cutmix=1.0, switch=0.4, classes=41, smoothing=0.1),
    "pairs": lambda: _mixing(mixup=0.5, p=0.6),
}


def _mixing(**options: Any) -> Any:
    from dali_feed import Mixing

    return Mixing(**options)


def _plain() -> Any:
    from nvidia.dali import fn

    images = fn.decoders.image(fn.external_source(name="image"))
    return fn.resize(images, size=[16, 16]), fn.external_source(name="label")


def _augmented() -> Any:
    from nvidia.dali import fn, types

    images = fn.decoders.image_random_crop(fn.external_source(name="image"), random_area=[0.3, 1.0])
    images = fn.resize(images, size=[16, 16])
    images = fn.brightness(images, brightness=fn.random.uniform(range=[0.7, 1.3]))
    images = fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), dtype=types.FLOAT)
    return images, fn.external_source(name="label")


PIPELINES: dict[str, Callable[[], Any]] = {"plain": _plain, "augmented": _augmented}
LONG: set[str] = set()  # names of rows that are left to `make test-long`

# The table. `_rows` names each row by what is special in it.


def _row(name: str, **way: Any) -> tuple[str, Way]:
    return name, way


def _orders() -> Iterator[tuple[str, Way]]:
    """Each source in each order, by 1, 2 and 4 ranks, resumed by another number of them.

    The short form of this product has each source in each order, by each number of ranks, and each order by each: of
    the three numbers, the ones for a source and an order are one each, in turn.
    """
    kinds = (
        *("tar", "set", "set of a topic", "files", "folder", "arrow", "tfrecords", "mds", "recordio", "scripted"),
        *("no random access", "interleaved", "concat", "mix", "mix by schedule", "topic"),
    )
    orders = [*SHUFFLES.items()]
    for number, turn, world in itertools.product(range(len(kinds)), range(len(orders)), range(len(WORLDS))):
        kind, (order, shuffle), (ranks, again) = kinds[number], orders[turn], WORLDS[world]
        name = f"{kind}, {order}, {ranks} to {again}"
        if (number + turn) % len(WORLDS) != world and kind != "scripted":
            LONG.add(name)
        yield _row(
            name,
            source=kind,
            shuffle=shuffle,
            ranks=ranks,
            again=again,
            transform="cut",
            exact=True,
        )
    for kind, (order, shuffle) in itertools.product(("parquet", "arrow files"), SHUFFLES.items()):
        if shuffle is not True:  # windows of tables are to change
            yield _row(f"{kind}, {order}", source=kind, shuffle=shuffle, transform="cut", exact=True)
    for kind, order in itertools.product(
        ("striped set", "concat of topics", "mix of three", "mix to all", "mix of samples", "mix linear", "cut topic"),
        ("in order", "shuffled", "windows"),
    ):
        yield _row(
            f"{kind}, {order}", source=kind, shuffle=SHUFFLES[order], ranks=2, again=1, transform="cut", exact=True
        )
    for kind, order in itertools.product(("arrays", "array images"), SHUFFLES):
        yield _row(f"{kind}, {order}", source=kind, shuffle=SHUFFLES[order], plain=True)


def _bad() -> Iterator[tuple[str, Way]]:
    """Records that cannot be used: which others stand in their slots.

    In the short form each source has such records in one order, in turn; `_orders` has it in each.
    """
    kinds = "tar", "set", "files", "arrow", "tfrecords", "mds", "scripted", "no random access", "concat", "mix", "topic"
    orders = [*(SHUFFLES | {"windows": (4, 6)}).items()]
    for number, turn in itertools.product(range(len(kinds)), range(len(orders))):
        kind, (order, shuffle) = kinds[number], orders[turn]
        name = f"bad records: {kind}, {order}"
        if name == "bad records: mix, in order":  # all records of one window are bad
            continue
        if (number + turn) % len(orders) != 1 and kind != "scripted":
            LONG.add(name)
        yield _row(
            name,
            source=kind,
            shuffle=shuffle,
            bad=True,
            ranks=2,
            again=4,
            transform="cut",
            exact=True,
        )
    yield _row(
        "bad records: two windows",
        source="scripted",
        shuffle=(2, 2),
        bad=True,
        lanes=1,
        batch=5,
        again=1,
        transform="cut",
        exact=True,
    )
    yield _row(
        "bad records: engine dali",
        source="scripted",
        shuffle=True,
        bad=True,
        engine="dali",
        transform="cut",
        exact=True,
    )
    yield _row(
        "bad records: several readers",
        source="tar",
        shuffle=True,
        bad=True,
        readers=3,
        threads=2,
        prefetch=3,
        transform="cut",
        exact=True,
    )
    yield _row("bad records: numbers", source="topic", shuffle=True, bad=True, columns="key and header")
    yield _row("bad records: a format", source="json topic", shuffle=True, bad=True, columns="inside")
    for name, bound in (("pixels", {"max_pixels": 600}), ("work", {"max_work": 700})):
        yield _row(f"bad records: more {name} than allowed", source="scripted", transform="cut", exact=True, **bound)


def _pixels() -> Iterator[tuple[str, Way]]:
    """Each transform on each engine."""
    for name, engine in itertools.product(TRANSFORMS, ("host", "dali")):
        if (engine == "dali" and name in _HOST_ALONE) or (engine == "host" and name == "graph"):
            continue
        exact = {"exact": True} if name in _WHOLE and engine == "host" else {}
        payloads = "png" if exact else "jpeg"
        yield _row(
            f"{engine}: {name}",
            source="one partition",
            payloads=payloads,
            transform=name,
            engine=engine,
            shuffle=True,
            lanes=2,
            epochs=1,
            again=None,
            **exact,
        )
    views = {"crops": ["train", "train", "evaluate"], "one and another": ["cut", "jitter"]}
    for (name, several), engine in itertools.product(views.items(), ("host", "dali")):
        yield _row(
            f"views: {name}, {engine}",
            source="one partition",
            payloads="jpeg",
            views=several,
            engine=engine,
            shuffle=True,
        )
    yield _row("views: bad records", source="scripted", bad=True, views=["cut", "both flips"], shuffle=True, exact=True)
    for engine in ("host", "dali"):
        yield _row(
            f"kinds of images, {engine}",
            source="one partition",
            payloads="kinds",
            transform="resize",
            engine=engine,
            epochs=1,
        )
        yield _row(
            f"turned by EXIF, {engine}",
            source="one partition",
            payloads="exif",
            transform="resize",
            engine=engine,
            exif=True,
            epochs=1,
        )
        yield _row(
            f"not turned by EXIF, {engine}",
            source="one partition",
            payloads="exif",
            transform="resize",
            engine=engine,
            exif=False,
            epochs=1,
        )
        yield _row(
            f"channels last, {engine}",
            source="one partition",
            payloads="jpeg",
            transform="train",
            engine=engine,
            memory_format=torch.channels_last,
            epochs=1,
        )
        yield _row(
            f"turned, random crop, {engine}",
            source="one partition",
            payloads="exif",
            transform="crop",
            engine=engine,
            exif=True,
            shuffle=True,
        )


def _columns() -> Iterator[tuple[str, Way]]:
    """What a batch holds."""
    of_tar = list(itertools.takewhile(lambda name: name != "table", COLUMNS))
    for name in of_tar:
        exact = {"exact": True} if name == "image and more" else {}
        yield _row(f"columns: {name}", source="tar", columns=name, shuffle=True, ranks=2, again=1, **exact)
    others = {
        "table": ("arrow", "parquet", "arrow files"),
        "table texts": ("arrow", "parquet"),
        "table lists": ("parquet",),
        "rows": ("arrays",),
        "feature": ("tfrecords",),
        "sample": ("mds",),
        "inside": ("json topic",),
        "inside, arrays": ("json topic",),
        "key and header": ("topic",),
        "rows as images": ("array images",),
    }
    for name, kinds in others.items():
        for kind in kinds:
            exact = {"exact": True} if name == "rows as images" else {}
            yield _row(f"columns: {name} of {kind}", source=kind, columns=name, shuffle=(4, 3), **exact)
    for name, kind in (("raw inside", "msgpack topic"), ("npy value", "npy topic"), ("protobuf", "protobuf topic")):
        exact = {"exact": True} if name == "raw inside" else {}
        yield _row(f"format: {kind}", source=kind, columns=name, shuffle=True, **exact)
        if name != "protobuf":
            yield _row(f"format: {kind}, bad", source=kind, columns=name, bad=True, ranks=2, **exact)
    yield _row("format: avro topic, nulls are bad records", source="avro topic", columns="avro", shuffle=True)
    yield _row("columns: packed, 1 to 4", source="tar", columns="packed", shuffle=(4, 3), again=4)
    yield _row("columns: packed, 4 to 1", source="set", columns="packed whole", shuffle=True, ranks=4, again=1)
    yield _row("columns: text of set", source="set", columns="text", shuffle=True)
    for name in COLUMNS:
        if name.startswith("followers"):
            yield _row(name, source="followed", payloads="jpeg", columns=name, shuffle=True, epochs=1)
    for name in ("two images", "two images, drawn alike"):
        for engine in ("host", "dali"):
            yield _row(
                f"columns: {name}, {engine}",
                source="followed",
                payloads="jpeg",
                columns=name,
                shuffle=True,
                engine=engine,
                epochs=1,
            )


def _ways() -> Iterator[tuple[str, Way]]:
    """Samplers, caches, borders, sizes, mixing, torch's loader, streams, DALI's iterators."""
    cut: Way = {"transform": "cut", "exact": True}
    for name in SAMPLERS:
        alone: Way = {"alone": True, "again": 1} if name == "distributed" else {}
        yield _row(f"sampler: {name}", source="scripted", sampler=name, **alone, **cut)
    yield _row("sampler: of a table", source="arrow", sampler="twice", ranks=2, again=1, **cut)
    yield _row("sampler: bad records", source="tar", sampler="twice", bad=True, **cut)
    for kind, pixels in itertools.product(("tar", "topic"), (False, True)):
        cache = {"memory": "64MB", "pixels": pixels}
        yield _row(
            f"cache: {kind}, {('pixels' if pixels else 'records')}",
            source=kind,
            shuffle=True,
            bad=True,
            cache=cache,
            epochs=3,
            engine="host",
            **cut,
        )
    yield _row("cache: a little", source="files", shuffle=True, cache={"memory": 2000}, epochs=3, **cut)
    yield _row("cache: columns", source="tar", shuffle=True, cache={"memory": "1MB"}, columns="text")
    yield _row(
        "cache: JPEGs decoded",
        source="one partition",
        payloads="jpeg",
        shuffle=True,
        engine="host",
        cache={"memory": "64MB", "pixels": True},
        transform="train",
    )
    one: Way = {"lanes": 1, "again": 1, "stop": 1}
    for batch, drop_last in itertools.product((1, 5, 12, 41), (False, True)):
        yield _row(
            f"batches of {batch}{(', last dropped' if drop_last else '')}",
            source="scripted",
            shuffle=True,
            batch=batch,
            drop_last=drop_last,
            **one,
            **cut,
        )
    yield _row("a batch that is never full", source="scripted", shuffle=True, batch=100, **one, **cut)
    yield _row("last of each rank dropped", source="tar", batch=12, ranks=2, again=4, drop_last=True, **cut)
    for lanes in (2, 4, 8):
        yield _row(f"lanes: {lanes}", source="scripted", shuffle=True, lanes=lanes, stop=3, again=2, **cut)
    for kind in ("scripted", "tar", "topic", "arrow", "mix"):
        yield _row(f"lanes by default: {kind}", source=kind, shuffle=(3, 2), lanes=None, again=1, **cut)
    for kind, (ranks, again) in itertools.product(("image folder", "subset"), WORLDS):
        yield _row(f"{kind}, {ranks} to {again}", source=kind, shuffle=True, ranks=ranks, again=again, exact=True)
    yield _row("image folder, bad records", source="image folder", bad=True, shuffle=True, exact=True)
    yield _row("hugging face", source="hugging face", shuffle=True, ranks=2, again=1, **cut)
    for seed in (1, 2**40, 2**64 - 1):
        yield _row(f"seed {seed}", source="scripted", shuffle=True, seed=seed, **cut)
    for kind in ("scripted", "tar", "topic", "mix to all", "mix by schedule"):
        yield _row(f"border: {kind}", source=kind, shuffle=True, border=True, ranks=2, again=1, **cut)
    yield _row("epoch 7", source="scripted", shuffle=True, first=7, **cut)
    for name, engine in itertools.product(MIXING, ("host", "dali")):
        yield _row(
            f"mixing: {name}, {engine}",
            source="one partition",
            payloads="jpeg",
            shuffle=True,
            transform="train",
            mixing=name,
            engine=engine,
            epochs=1,
        )
    for order, shuffle in SHUFFLES.items():
        yield _row(f"torch's loader: {order}", by="torch", info=False, shuffle=shuffle, ranks=2, again=4, plain=True)
    yield _row("torch's loader: sampler", by="torch", info=False, sampler="few", plain=True)
    yield _row("torch's loader: last dropped", by="torch", info=False, shuffle=True, drop_last=True, plain=True)
    yield _row(
        "torch's loader: iterable",
        by="torch",
        info=False,
        iterable=True,
        lanes=None,
        again=None,
        stop=None,
        epochs=1,
        plain=True,
    )
    for kind in ("stream", "scripted stream"):
        yield _row(f"stream: {kind}", by="stream", source=kind, transform="cut", exact=True)
        yield _row(f"stream: {kind}, bad records", by="stream", source=kind, transform="cut", bad=True, exact=True)
        yield _row(f"stream: {kind}, JPEGs", by="stream", source=kind, payloads="jpeg", transform="all of it")
    yield _row("stream: two ranks", by="stream", source="streams", transform="cut", exact=True, ranks=2, batch=8)
    yield _row("stream: records", by="stream", source="stream", columns="key and header")
    for name, policy in itertools.product(PIPELINES, ("PARTIAL", "FILL", "DROP")):
        yield _row(
            f"DALI iterator: {name}, {policy}",
            by="dali",
            source="one partition",
            payloads="jpeg",
            pipeline=name,
            policy=policy,
            shuffle=True,
            batch=4,
        )
    yield _row(
        "DALI iterator: two ranks",
        by="dali",
        source="tar",
        payloads="jpeg",
        pipeline="augmented",
        shuffle=(3, 2),
        batch=8,
        ranks=2,
        again=4,
    )
    yield _row(
        "DALI iterator: bad records", by="dali", source="scripted", bad=True, pipeline="plain", shuffle=True, batch=4
    )


_DEFAULTS: Way = {
    "by": "loader", "payloads": "png", "bad": False, "shuffle": False, "lanes": 4, "batch": 8, "ranks": 1, "again": 2,
    "stop": 2, "epochs": 2, "first": 0, "seed": 3,
}  # fmt: skip
ROWS: dict[str, Way] = {}
for _name, _way in itertools.chain(_orders(), _bad(), _pixels(), _columns(), _ways()):
    assert _name not in ROWS, _name
    ROWS[_name] = _DEFAULTS | _way

# Positions in the middle, written in today's form by `kit.api.position`; what follows is frozen, not the form.
STATES: dict[str, tuple[str, Way]] = {
    f"{row} @ {where}": (row, where)
    for row, *positions in (
        ("scripted, in order, 1 to 2", {"epoch": 0, "consumed": 4}, {"epoch": 3, "consumed": 0}),
        ("scripted, shuffled, 2 to 4", {"epoch": 1, "consumed": 6}, {"epoch": 0, "consumed": 10}),
        ("scripted, windows, 4 to 1", {"epoch": 2, "consumed": 2}, {"epoch": 0, "consumed": 9}),
        ("bad records: scripted, windows", {"epoch": 0, "consumed": 4}, {"epoch": 1, "consumed": 8}),
        ("lanes: 8", {"epoch": 5, "consumed": 3}),
        ("tar, windows, 1 to 2", {"epoch": 0, "consumed": 6}),
        ("set of a topic, shuffled, 1 to 2", {"epoch": 1, "consumed": 4}),
        ("topic, windows, 2 to 4", {"epoch": 0, "consumed": 4}),
        ("arrow, shuffled, 1 to 2", {"epoch": 2, "consumed": 8}),
        ("sampler: few", {"epoch": 0, "consumed": 2}),
        ("sampler: twice", {"epoch": 0, "consumed": 7}),
        ("mix, shuffled, 1 to 2", {"epoch": 0, "consumed": 4}, {"epoch": 3, "consumed": 2}),
        ("mix by schedule, windows, 2 to 4", {"epoch": 1, "consumed": 4}, {"epoch": 4, "consumed": 2}),
        ("mix to all, shuffled", {"epoch": 0, "consumed": 12}),
        ("concat, windows, 1 to 2", {"epoch": 0, "consumed": 10}),
        ("columns: packed", {"epoch": 0, "consumed": 4}),
        ("columns: packed whole", {"epoch": 1, "consumed": 6}),
        ("torch's loader: shuffled", {"epoch": 1, "consumed": 4}),
        ("torch's loader: sampler", {"epoch": 0, "consumed": 2}),
        ("DALI iterator: augmented, PARTIAL", {"epoch": 0, "consumed": 3}, {"epoch": 2, "consumed": 5}),
        ("stream: stream", {"offsets": {"0": 13}}),
        ("stream: scripted stream", {"offsets": {"0": 21}}),
        ("mixing: ours, host", {"epoch": 0, "consumed": 4}),
        ("host: all of it", {"epoch": 4, "consumed": 8}),
    )
    for where in positions
}
