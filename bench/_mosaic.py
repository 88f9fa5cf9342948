"""Mosaic Streaming over the records of a tar set; a line with the size of each batch. Its interpreter has streaming.

    python bench/_mosaic.py FOLDER SUFFIX DTYPE SHAPE BATCH WORKERS SHARD...

The records are written to FOLDER as MDS once. Nothing of dali_feed is imported: NumPy of another version may be here.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


def write(folder: Path, suffix: str, dtype: str, shape: tuple[int, ...], shards: list[str]) -> None:
    """The records of the shards as MDS."""
    work = folder.with_name("mds.tmp")
    shutil.rmtree(work, ignore_errors=True)
    columns = {"x": f"ndarray:{dtype}:{','.join(map(str, shape))}", "y": "int"}
    with MDSWriter(out=str(work), columns=columns) as out:
        for path in shards:
            held: dict[str, bytes] = {}
            with tarfile.open(path) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    held[member.name.partition(".")[2]] = file.read()
                    if len(held) == 2:
                        out.write({"x": np.frombuffer(held[suffix], dtype).reshape(shape), "y": int(held["cls"])})
                        held = {}
    work.rename(folder)


def main() -> None:
    """Batches until the reader of standard output is gone."""
    folder, suffix, dtype, shape, batch, workers, *shards = sys.argv[1:]
    if not Path(folder).exists():
        write(Path(folder), suffix, dtype, tuple(map(int, shape.split(","))), shards)
    clean_stale_shared_memory()  # of a turn that was ended
    torch.set_num_threads(1)
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=int(batch))
    loader = torch.utils.data.DataLoader(
        dataset, int(batch), num_workers=int(workers), drop_last=True, persistent_workers=int(workers) > 0
    )
    while True:
        for item in loader:
            print(len(item["x"]), flush=True)


if __name__ == "__main__":
    main()
