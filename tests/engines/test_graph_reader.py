"""DALI's own training script as it is: a built pipeline with a file reader in its graph, and no source."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import jpeg, labelled
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator as DalisIterator
from nvidia.dali.plugin.pytorch import LastBatchPolicy as DalisPolicy

from dali_feed.dali import DALIClassificationIterator, DALIGenericIterator, LastBatchPolicy
from dali_feed.errors import ConfigError, SourceNotFoundError
from dali_feed.loader import arguments as torch_arguments
from dali_feed.testing.scripted import ScriptedSource

COUNT, BATCH = 22, 4
CPU: dict[str, Any] = {"batch_size": BATCH, "num_threads": 2, "device_id": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per class, of JPEGs of several sizes."""
    root = tmp_path_factory.mktemp("pictures")
    for n in range(COUNT):
        (root / f"class{n % 3}").mkdir(exist_ok=True)
        (root / f"class{n % 3}" / f"{n:02}.jpg").write_bytes(jpeg(n, 20 + n, 40 - n))
    return root


@pipeline_def(exec_dynamic=True)  # type: ignore[untyped-decorator, unused-ignore]
def create_dali_pipeline(
    data_dir: str, crop: int, shard_id: int, num_shards: int, dali_cpu: bool, is_training: bool
) -> Any:
    """The graph of DALI's resnet50 example."""
    images, labels = fn.readers.file(
        file_root=data_dir,
        shard_id=shard_id,
        num_shards=num_shards,
        random_shuffle=is_training,
        pad_last_batch=True,
        name="Reader",
    )
    device = "cpu" if dali_cpu else "mixed"
    if is_training:
        images = fn.decoders.image_random_crop(images, device=device, output_type=types.RGB, num_attempts=100)
        images = fn.resize(images, resize_x=crop, resize_y=crop, interp_type=types.INTERP_TRIANGULAR)
        mirror = fn.random.coin_flip(probability=0.5)
    else:
        images = fn.decoders.image(
            images, device=device, output_type=types.RGB, adjust_orientation=False, jpeg_fancy_upsampling=True
        )
        images = fn.resize(images, size=crop, mode="not_smaller", interp_type=types.INTERP_TRIANGULAR)
        mirror = False
    images = images if dali_cpu else images.gpu()
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(crop, crop),
        mean=[120.0] * 3,
        std=[60.0] * 3,
        mirror=mirror,
    )
    return images, labels if dali_cpu else labels.gpu()


def pipeline(
    root: Path, *, shard: tuple[int, int] = (0, 1), train: bool = True, cpu: bool = True, **options: Any
) -> Any:
    """As main.py makes it: a Pipeline."""
    arguments = {"crop": 16, "shard_id": shard[0], "num_shards": shard[1], "dali_cpu": cpu, "is_training": train}
    return create_dali_pipeline(data_dir=str(root), **arguments, **{**CPU, **options})


def built(*given: Any, **options: Any) -> Any:
    """And as it goes on: built."""
    pipe = pipeline(*given, **options)
    pipe.build()
    return pipe


def trained(loader: Any) -> list[tuple[list[int], torch.Tensor]]:
    """An epoch, with the lines of main.py."""
    seen = []
    for _, data in enumerate(loader):
        inputs, target = data[0]["data"], data[0]["label"].squeeze(-1).long()
        assert math.ceil(loader._size / BATCH) == len(loader)
        seen.append((target.tolist(), inputs.clone()))
    return seen


def labels_of(epoch: list[tuple[list[int], torch.Tensor]]) -> list[int]:
    """All of an epoch."""
    return [label for labels, _ in epoch for label in labels]


@pytest.mark.parametrize("make", [pipeline, built])
def test_it_gives_what_dalis_own_iterator_gives(folder: Path, make: Any) -> None:
    """Without shuffling: the same labels and pixels in the same order, built or not."""
    theirs = DalisIterator(
        pipeline(folder, train=False), reader_name="Reader", last_batch_policy=DalisPolicy.PARTIAL, auto_reset=True
    )
    ours = DALIClassificationIterator(
        make(folder, train=False), reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )
    with ours:
        for _ in range(2):
            for (a, x), (b, y) in zip(trained(theirs), trained(ours), strict=True):
                assert a == b
                assert torch.equal(x, y)


def test_it_trains_and_goes_on(folder: Path) -> None:
    """Shuffled as the reader was told, every file once an epoch, augmented, and bit for bit from a state."""

    def loop() -> Any:
        return DALIClassificationIterator(built(folder), reader_name="Reader", last_batch_policy=DalisPolicy.PARTIAL)

    def digests(epoch: Any) -> list[str]:
        return [hashlib.sha256(pixels.numpy().tobytes()).hexdigest() for _, pixels in epoch]

    with loop() as loader:
        epochs = [trained(loader) for _ in range(2)]
        for n, _ in enumerate(loader):
            if n == 2:
                state = loader.state_dict()
        loader.load_state_dict(state)
        rest = digests(trained(loader))
    assert [sorted(labels_of(epoch)) for epoch in epochs] == [sorted(n % 3 for n in range(COUNT))] * 2
    assert labels_of(epochs[0]) != sorted(labels_of(epochs[0]))
    assert digests(epochs[0]) != digests(epochs[1])
    with loop() as again:
        again.load_state_dict(state)
        assert digests(trained(again)) == rest
        assert len(rest) == 3


def test_the_readers_shard_is_the_rank(folder: Path) -> None:
    """Two processes see every file once between them, in equally many batches; an explicit rank stands before it."""
    parts = []
    for rank in range(2):
        with DALIClassificationIterator(
            built(folder, shard=(rank, 2)), last_batch_policy=DalisPolicy.PARTIAL
        ) as loader:
            parts.append(labels_of(trained(loader)))
            assert (loader._feed.rank, loader._feed.world_size) == (rank, 2)
    assert len(parts[0]) == len(parts[1])
    assert sorted(parts[0] + parts[1]) == sorted(n % 3 for n in range(COUNT))
    with DALIClassificationIterator(built(folder, shard=(1, 2)), rank=0, world_size=1) as loader:
        assert len(loader) == -(-COUNT // BATCH)


def test_shuffle_and_sampler_stand_before_the_readers(folder: Path) -> None:
    """What is given to the iterator counts."""
    policy: dict[str, Any] = {"last_batch_policy": LastBatchPolicy.PARTIAL}
    with DALIClassificationIterator(pipeline(folder), shuffle=False, **policy) as loader:
        assert labels_of(trained(loader)) == sorted(n % 3 for n in range(COUNT))
    with DALIClassificationIterator(pipeline(folder), sampler=[21, 0, 8], **policy) as loader:
        assert labels_of(trained(loader)) == [2, 0, 1]


@pipeline_def(**CPU, enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
def branching(root: str) -> Any:
    """A reader's outputs behind a condition, one of them twice."""
    images, labels = fn.readers.file(file_root=root)
    decoded = fn.resize(fn.decoders.image(images), size=[8, 8])
    if fn.random.coin_flip(probability=1.0):
        out = fn.flip(decoded)
    else:
        out = decoded
    return out, labels, labels + 1


def test_a_reader_in_a_graph_with_branches(folder: Path) -> None:
    """Wherever its outputs go, the inputs in its place go too; a reader needs no name."""
    with DALIGenericIterator(
        branching(str(folder)), ["image", "label", "next"], last_batch_policy=DalisPolicy.PARTIAL
    ) as loader:
        for data in loader:
            assert torch.equal(data[0]["label"] + 1, data[0]["next"])


def test_a_built_pipeline_is_taken_with_a_source_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed by inputs of its own, built before; its reader_name has no effect, as ever."""
    monkeypatch.setattr(torch_arguments, "_warned", set())

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def plain() -> Any:
        return fn.resize(fn.decoders.image(fn.external_source(name="image")), size=[8, 8]), fn.external_source(
            name="label"
        )

    pipe = plain()
    pipe.build()
    with (
        pytest.warns(UserWarning, match="reader_name has no effect"),
        DALIClassificationIterator(pipe, ScriptedSource(labelled(8)), reader_name="Reader") as loader,
    ):
        assert [data[0]["label"].flatten().tolist() for data in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def graph(read: Any) -> Any:
    """Images that `read` gives, and labels."""

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def mine() -> Any:
        images, labels = read()
        return fn.resize(fn.decoders.image(images), size=[8, 8]), labels

    return mine


EDITS = r"source=.*ShardSet.*fn\.external_source\(name='image'\).*leave out reader_name="


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda: fn.readers.coco(file_root=".", annotations_file="a.json")[:2], "its reader is readers__COCO"),
        (
            lambda: fn.readers.webdataset(paths=["a.tar"], ext=["jpg", "cls"], dtypes=[types.UINT8, types.INT32]),
            "its reader is given dtypes other than UINT8",
        ),
        (lambda: fn.readers.file(files=["a.jpg"], labels=[3]), "its reader is given files, labels"),
        (lambda: fn.readers.file(file_root=".", file_filters=["*.png"]), "its reader is given file_filters"),
        (lambda: (fn.readers.file(file_root=".")[0], fn.readers.file(file_root=".")[1]), "the graph has 2 readers"),
        (lambda: (fn.external_source(name="image"), fn.external_source(name="label")), "the graph has no reader"),
    ],
)
def test_what_cannot_be_taken_over_names_all_three_edits(read: Any, why: str) -> None:
    """One error, with why, and all that is to be changed."""
    with pytest.raises(ConfigError, match=rf"^pipeline mine: .*{why}.*{EDITS}"):
        DALIClassificationIterator(graph(read), reader_name="Reader")


def test_another_readers_name(folder: Path) -> None:
    """A reader_name that the graph has not is an error, with the name that it has."""
    with pytest.raises(ConfigError, match="reader_name: .*'Reader'; found 'reader'"):
        DALIClassificationIterator(pipeline(folder), reader_name="reader")


@pytest.mark.parametrize("make", [pipeline, built])
def test_files_that_dali_lists_otherwise_are_told(folder: Path, tmp_path: Path, make: Any) -> None:
    """A folder in a class folder is torchvision's and not DALI's: both counts, and how to say which are meant."""
    for path in folder.rglob("*.jpg"):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "class0" / "more").mkdir()
    (tmp_path / "class0" / "more" / "x.jpg").write_bytes(jpeg(0))
    with pytest.raises(ConfigError, match=rf"DALI counts {COUNT} files .* {COUNT + 1}\..*source=FileList"):
        DALIClassificationIterator(make(tmp_path))


def test_a_folder_that_is_not_there() -> None:
    """The source's own error."""
    with pytest.raises(SourceNotFoundError, match="/no/such"):
        DALIClassificationIterator(pipeline(Path("/no/such")))


@pytest.mark.gpu
def test_dalis_script_on_a_gpu(folder: Path) -> None:
    """Decoded by "mixed", labels and all on the device, built on it: an epoch sees every file once."""
    pipe = built(folder, cpu=False, device_id=torch.cuda.current_device())
    with DALIClassificationIterator(
        pipe, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    ) as loader:
        epoch = trained(loader)
    assert all(pixels.is_cuda for _, pixels in epoch)
    assert sorted(labels_of(epoch)) == sorted(n % 3 for n in range(COUNT))
