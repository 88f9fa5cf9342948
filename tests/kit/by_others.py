"""Small files as the formats' own libraries wrote them: in by_others.json, deflated, in base64.

tensorflow.tfrecord: `tf.io.TFRecordWriter` of tensorflow-cpu 2.21.0, three `tf.train.Example` of n = 0, 1, 2:
    image/encoded (a JPEG of 8 x 8), image/class/label n - 1, image/object/bbox [0.25, 0.5, n + 0.5],
    ids range(-1, 9 n), text "é n".
mxnet.rec: `MXIndexedRecordIO` of mxnet 1.9.1: IRHeader(0, 3.0, 7, 9) and b"abc"; labels [1.5, -2], id 8 and "wxyz", the
    mark of a frame, "tail"; label -1.0, id 9 and the mark twice, "12345"; label 4.0, id 10 and nothing.
mds: `MDSWriter` of mosaicml-streaming 0.13.0, three samples of n = 0, 1, 2 in two shards with sha1 and xxh64:
    image (bytes, a JPEG of 8 x 8), label (int) n - 1, caption (str) "é n", x (ndarray:float32:3) n, n + 1, n + 2,
    a (ndarray) int32 0..5 as (2, 3), b (ndarray:int16) -n as (2, 2), id (uint16) 1000 n, f (float64) n / 4,
    meta (json) {"n": n}, i (str_int) -n, big (str_float) n / 8, d (str_decimal) 1.5.
gray/shard.00000.mds: `MDSWriter` as well: image (three gray JPEGs), label (int) 7, 8, 9, and text (str).
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

_FILES: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text())


def by_others(name: str) -> bytes:
    """One of them."""
    return zlib.decompress(base64.b64decode(_FILES[name]))


def written_to(folder: Path) -> None:
    """All of them under the folder."""
    for name in _FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(by_others(name))
