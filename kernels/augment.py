"""`augment`: AutoAugment and its kind, each sample's own operations in its own order, in one launch (augment.cu).

Law: its pixels are torchvision v2's on the CPU, to the bit: moves by nearest pixels and what looks levels up
everywhere; moves by bilinear ones, Sharpness, Color and Contrast where torch's CPU multiplies and adds in one rounding
(AVX2 and later), else within one level, and so Contrast of images above 66,000 pixels, whose mean torch does not sum
exactly. `dali_feed.transforms.auto_augment` makes the rows.
"""

from __future__ import annotations

import numpy as np

from dali_feed.kernels.arguments import Rules
from dali_feed.kernels.launch import Launch, Launcher
from dali_feed.transforms.auto_augment import WIDTH

_THREADS = 1024
_RULES = Rules("augment")


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
