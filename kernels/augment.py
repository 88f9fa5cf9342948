"""`augment`: AutoAugment and its kind, each sample's own operations in its own order, in one launch (augment.cu).

Law: its pixels are torchvision v2's on the CPU, to the bit: moves by nearest pixels and what looks levels up
everywhere; moves by bilinear ones, Sharpness, Color and Contrast where torch's CPU multiplies and adds in one rounding
(AVX2 and later), else within one level, and so Contrast of images above 66,000 pixels, whose mean torch does not sum
exactly. `dali_feed.transforms.auto_augment` makes the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_feed.kernels.arguments import Rules
from dali_feed.kernels.jitter import blended, clamped, fma, gray_of, level, mean_gray
from dali_feed.kernels.launch import Launch, Launcher
from dali_feed.transforms.auto_augment import STAGES, WIDTH

Floats = NDArray[np.float32]

_THREADS = 1024
_RULES = Rules("augment")
_NAMES = {float(number): name for name, number in STAGES.items()}


def copies(chains: int, stages: int, *, mixed: bool) -> int:
    """How many times the images `spare` must have."""
    return chains + 1 if mixed else int(stages > 1)


@Launcher
def augment(
    images: object,
    out: object,
    rows: object,
    *,
    spare: object = None,
    weights: object = None,
    stream: object = None,
) -> Launch:
    """Write the changed batch into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on the current GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, H, W >= 1:

    - `images`: uint8 (N, H, W, 3), C contiguous.
    - `out`: the same, apart from `images`.
    - `rows`: float32 (N, chains, stages, 12): for each sample what each stage does, as
      `dali_feed.transforms.auto_augment.stage_table` has it. One chain, unless there are weights.
    - `spare`: uint8 (`copies(...)`, N, H, W, 3), memory to work in; None where that is 0.
    - `weights`: float32 (N, 1 + chains): shares of the image and of what each chain makes of it, which are summed up.
    - `stream`: as in `finish`.

    One block works on each image, so a batch with fewer images than the GPU has multiprocessors leaves some idle.
    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    source = _RULES.images(images)
    samples, height, width, _ = source.shape
    target = _RULES.like_images("out", out, source)
    to_do = _RULES.array("rows", rows, ("<f4",))
    if len(to_do.shape) != 4 or to_do.shape[::3] != (samples, WIDTH) or 0 in to_do.shape:
        _RULES.refuse("rows", f"must have shape ({samples}, chains, stages, {WIDTH})", to_do.shape)
    _RULES.dense("rows", to_do)
    chains, stages = to_do.shape[1:3]
    if weights is None and chains != 1:
        _RULES.refuse("rows", "must have one chain without weights", chains)
    shares, _ = _RULES.parameter("weights", weights, ("<f4",), (samples, 1 + chains))
    room, count = 0, copies(chains, stages, mixed=weights is not None)
    if count:
        work = _RULES.array("spare", spare, ("|u1",))
        if work.shape != (count, *source.shape):
            _RULES.refuse("spare", f"must have shape {(count, *source.shape)}", work.shape)
        _RULES.dense("spare", work)
        _RULES.writable("spare", work, ("images", source), ("out", target))
        room = work.pointer
    vector = next(size for size in (16, 4, 1) if not (height * width % size or (target.pointer | room) % size))
    pointers = {"images": source.pointer, "out": target.pointer, "spare": room, "rows": to_do.pointer}
    sizes = {"chains": chains, "stages": stages, "height": height, "width": width}
    return Launch(
        kernel="augment",
        options=("-DOUT_UINT8", f"-DVECTOR={vector}"),
        grid=(samples, 1, 1),
        block=(min(_THREADS, -(-height * width // 32) * 32), 1, 1),
        arguments={name: np.uint64(each) for name, each in pointers.items()}
        | {"weights": shares}
        | {name: np.int32(size) for name, size in sizes.items()},
        stream=stream,
    )


def augment_reference(
    images: NDArray[np.uint8],
    rows: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    fused: bool = True,
) -> NDArray[np.uint8]:
    """The same on the host: (n, h, w, 3) uint8 in and out, rows and weights as the kernel takes them.

    `fused`: as the kernel makes the grid of moved pixels. Without it as torch does with MKL on some processors.
    """
    out, chains = np.empty_like(images), np.asarray(rows, np.float32)
    with np.errstate(all="ignore"):  # a number may be anything
        for n, image in enumerate(images):
            made = [_chain(image, chain, fused=fused) for chain in chains[n]]
            if weights is None:
                (out[n],) = made
                continue
            own = np.asarray(weights, np.float32)[n]
            total = _seen(image, chains[n, 0, 0]).astype(np.float32) * own[0]
            for one, share in zip(made, own[1:], strict=True):
                total = total + one.astype(np.float32) * share
            out[n] = level(total).astype(np.uint8)
    return out


def _seen(image: NDArray[np.uint8], row: Floats) -> NDArray[np.uint8]:
    return image[:: -1 if row[2] != 0 else 1, :: -1 if row[1] != 0 else 1]


def _chain(image: NDArray[np.uint8], chain: Floats, *, fused: bool) -> NDArray[np.uint8]:
    for row in chain:
        image, name = _seen(image, row), _NAMES.get(float(row[0]), "")
        if name in {"nearest", "bilinear", "filled"}:
            image = _moved(image.astype(np.float32), name, row[3:9], row[9:], fused=fused).astype(np.uint8)
        else:
            image = _stage(image, name, row[3:9]).astype(np.uint8)
    return image


def _stage(image: NDArray[np.uint8], name: str, number: Floats) -> NDArray[Any]:  # noqa: PLR0911  one an operation
    value: Floats = image.astype(np.float32)
    match name:
        case "brightness":
            return level(value * number[0])
        case "contrast":
            return blended(value, mean_gray(value), number[0], number[1])
        case "saturation":
            return blended(value, np.trunc(gray_of(value))[..., None], number[0], number[1])
        case "sharpness":
            return _sharpened(value, number[1])
        case "posterize":
            return image & level(number[0]).astype(np.uint8)
        case "solarize":
            return np.where(value.view(np.int32) >= number[:1].view(np.int32), 255 - value, value)
        case "autocontrast":
            low, high = value.min((0, 1)), value.max((0, 1))
            span: Floats = np.where(high > low, (high - low) * np.float32(1 / 255), np.float32(1))
            darkest: Floats = np.where(high > low, low, np.float32(0))
            return level((value - darkest) / span)
        case "equalize":
            return np.stack([_equalized(image[..., c]) for c in range(3)], axis=-1)
        case "invert":
            return 255 - image
    return image


def _sharpened(value: Floats, rest: np.float32) -> Floats:
    done, inner = value.copy(), value[1:-1, 1:-1]
    if inner.size:
        windows = np.lib.stride_tricks.sliding_window_view(value, (3, 3), (0, 1)).sum((-2, -1))
        blur = np.floor((windows + 4 * inner + 6) / 13).astype(np.float32)
        done[1:-1, 1:-1] = level(fma(blur - inner, np.array(rest), inner))
    return done


def _equalized(channel: NDArray[np.uint8]) -> NDArray[np.uint8]:
    counts = np.bincount(channel.ravel(), minlength=256)
    step = (channel.size - counts[np.flatnonzero(counts)[-1]]) // 255
    if step == 0:
        return channel
    table = (np.cumsum(counts) - counts + step // 2) // step
    equal: NDArray[np.uint8] = np.minimum(table, 255).astype(np.uint8)[channel]
    return equal


def _moved(value: Floats, name: str, number: Floats, fill: Floats, *, fused: bool) -> Floats:
    height, width, _ = value.shape
    half, one = np.float32(0.5), np.float32(1)
    x = (np.arange(width, dtype=np.float32) * 2 + 1 - width) * half
    y = ((np.arange(height, dtype=np.float32) * 2 + 1 - height) * half)[:, None]

    def place(m: Floats, size: int) -> Floats:
        grid = fma(y, np.array(m[1]), x * m[0]) if fused else x * m[0] + y * m[1]
        return fma(grid + m[2] + one, np.array(np.float32(size) * half), np.array(-half))

    px, py = place(number[:3], width), place(number[3:], height)

    def at(row: Floats, column: Floats) -> tuple[Floats, Floats]:
        """Pixels there, and whether they are in the image; what is no number is 0."""
        row, column = (np.where(np.isnan(each), 0, each) for each in (row, column))
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        places = (np.where(inside, each, 0).astype(np.int64) for each in (row, column))
        return np.where(inside[..., None], value[tuple(places)], 0), inside.astype(np.float32)

    if name == "nearest":
        pixels, inside = at(np.rint(py), np.rint(px))
        return np.where(inside[..., None] > 0, pixels, np.rint(clamped(fill, 255)))
    left, top = np.floor(px), np.floor(py)
    w, n = px - left, py - top
    e, s = one - w, one - n
    total, mask = np.zeros_like(value), np.zeros((height, width), np.float32)
    corners = (0, 0, e * s), (0, 1, w * s), (1, 0, e * n), (1, 1, w * n)
    for down, right, weight in corners:
        row, column = top + np.float32(down), left + np.float32(right)
        pixels, inside = at(row, column)
        total = np.where(inside[..., None] > 0, fma(pixels, weight[..., None], total), total)
        mask = np.where(inside > 0, mask + weight, mask)
    if name == "filled":
        total = (total - fill) * mask[..., None] + fill
    return np.rint(clamped(total, 255))
