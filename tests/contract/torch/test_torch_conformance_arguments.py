"""torch's arguments, one by one: what each comes to with us, and what torch refuses is refused in its words."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from kit.both_loaders import COUNT, CPU_WARNING, OURS_BY_TORCH, Numbers, Stream, both_loaders, folder_of, tensors_of
from kit.images import QUICK
from kit.inside import Feed, TorchFeed, running
from kit.inside import arguments as torch_arguments
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader, Tuning
from dali_feed.errors import ConfigError

pytestmark = [OURS_BY_TORCH, CPU_WARNING]

# By the name in torch's signature: with a dataset that is read as files, and with one that torch's own loader runs.
# "warned" has a value that cannot apply beside it; what is honoured, the other files of conformance hold.
VERDICTS: dict[str, tuple[tuple[str, Any], tuple[str, Any]]] = {
    "dataset": (("honoured", None), ("honoured", None)),
    "batch_size": (("honoured", None), ("honoured", None)),
    "shuffle": (("honoured", None), ("honoured", None)),
    "sampler": (("honoured", None), ("honoured", None)),
    "batch_sampler": (("honoured", None), ("honoured", None)),
    "num_workers": (("honoured", None), ("honoured", None)),
    "collate_fn": (("honoured", None), ("honoured", None)),
    "pin_memory": (("warned", True), ("honoured", None)),
    "drop_last": (("honoured", None), ("honoured", None)),
    "timeout": (("honoured", None), ("warned", 3)),
    "worker_init_fn": (("warned", print), ("honoured", None)),
    "multiprocessing_context": (("warned", "spawn"), ("honoured", None)),
    "generator": (("honoured", None), ("honoured", None)),
    "prefetch_factor": (("honoured", None), ("honoured", None)),
    "persistent_workers": (("warned", True), ("honoured", None)),
    "pin_memory_device": (("warned", "cuda"), ("warned", "cuda")),
    "in_order": (("warned", False), ("warned", False)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Pictures in files."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root")


def test_every_argument_of_torchs_has_a_verdict() -> None:
    """The installed torch has no argument that the table leaves out, and the table none that torch has not."""
    assert list(inspect.signature(TorchLoader).parameters) == list(VERDICTS)


WARNED = [
    (name, native) for name, both in VERDICTS.items() for native in (True, False) if both[not native][0] == "warned"
]


@pytest.mark.parametrize(("name", "native"), WARNED)
def test_what_cannot_apply_is_warned_of_once(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch, name: str, *, native: bool
) -> None:
    """At the caller's line, the first time; the batches are what they are without it."""
    value = VERDICTS[name][not native][1]
    monkeypatch.setattr(torch_arguments, "_warned", set())
    data: Any = folder if native else tensors_of()
    options: dict[str, Any] = {"device": "cpu", "tuning": QUICK if native else Tuning(), name: value}
    with pytest.warns(UserWarning, match=f"^{name}(=False)? has no effect here: ") as told:
        one = DataLoader(data, 5, **options)
    assert {warning.filename for warning in told} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "dataset: ")
        two = DataLoader(data, 5, **options)
    with one, two, DataLoader(data, 5, device="cpu") as plain:
        for a, b, c in zip(one, two, plain, strict=True):
            assert all(torch.equal(x, z) and torch.equal(y, z) for x, y, z in zip(a, b, c, strict=True))


NO_ORDER = "DataLoader with IterableDataset: expected unspecified {} option, but"
# By dataset: files that we read, samples in memory, a stream. Each row is refused in torch's words, by both loaders.
OF_ANY: list[tuple[dict[str, Any], str]] = [
    ({"num_workers": -1}, "num_workers option should be non-negative"),
    ({"timeout": -1}, "timeout option should be non-negative"),
    ({"num_workers": 1, "prefetch_factor": -1}, "prefetch_factor option should be non-negative"),
    ({"batch_size": 0}, "batch_size should be a positive integer value, but got batch_size=0"),
    ({"batch_size": -3}, "batch_size should be a positive integer value, but got batch_size=-3"),
    ({"batch_size": 2.0}, "batch_size should be a positive integer value, but got batch_size=2.0"),
    ({"batch_size": True}, "batch_size should be a positive integer value, but got batch_size=True"),
    ({"drop_last": 3}, "drop_last should be a boolean value, but got drop_last=3"),
    ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching and is mutually ex"),
    ({"sampler": [1], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
    ({"sampler": [1], "shuffle": True, "batch_sampler": [[1]]}, "sampler option is mutually exclusive with shuf"),
    ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler option is mutually exclusive with batch_size, shu"),
    ({"batch_sampler": [[1]], "batch_size": None}, "batch_sampler option is mutually exclusive with"),
    ({"batch_sampler": [[1]], "shuffle": True}, "batch_sampler option is mutually exclusive with"),
    ({"batch_sampler": [[1]], "sampler": [1]}, "batch_sampler option is mutually exclusive with"),
    ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler option is mutually exclusive with"),
    ({"batch_sampler": [[1]], "drop_last": 3}, "batch_sampler option is mutually exclusive with"),
    ({"num_workers": 1, "multiprocessing_context": "thread"}, "multiprocessing_context option should specify a v"),
]
OF_MEMORY: list[tuple[dict[str, Any], str]] = [  # where torch's loader runs the dataset there have to be workers
    ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
    ({"prefetch_factor": 2}, "prefetch_factor option could only be specified in multiprocessing"),
    ({"multiprocessing_context": "spawn"}, r".*multi-process loading \(num_workers > 0\), but got num_workers=0"),
]
OF_A_STREAM: list[tuple[dict[str, Any], str]] = [  # the argument that was given is named before anything is said of it
    ({"shuffle": True}, NO_ORDER.format("shuffle")),
    ({"shuffle": 3}, NO_ORDER.format("shuffle")),
    ({"sampler": 3}, NO_ORDER.format("sampler")),
    ({"sampler": SequentialSampler(range(3))}, NO_ORDER.format("sampler")),
    ({"sampler": 3, "shuffle": True}, NO_ORDER.format("shuffle")),
    ({"batch_sampler": 3}, NO_ORDER.format("batch_sampler")),
    ({"batch_sampler": BatchSampler(range(3), 3, drop_last=False)}, NO_ORDER.format("batch_sampler")),
]
REFUSED = {"files": OF_ANY, "memory": OF_ANY + OF_MEMORY, "stream": OF_A_STREAM}


@both_loaders
@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [(kind, *row) for kind, rows in REFUSED.items() for row in rows],
    ids=lambda value: str(value)[:60],
)
def test_what_torch_refuses(folder: ImageFolder, loader: Any, kind: str, options: dict[str, Any], told: str) -> None:
    """A ValueError in torch's words, whoever would run the dataset; of ours a ConfigError as well."""
    data = {"files": folder, "memory": tensors_of(), "stream": Stream()}[kind]
    with pytest.raises(ValueError if loader is TorchLoader else ConfigError, match=f"^{told}") as caught:
        loader(data, **options)
    assert isinstance(caught.value, ValueError)


@both_loaders
@pytest.mark.parametrize("native", [True, False], ids=["files", "torch"])
def test_types_that_torch_refuses(folder: ImageFolder, loader: Any, *, native: bool) -> None:
    """A context that is none, a number of workers that is none, an argument that nobody knows."""
    data: Any = folder if native else tensors_of()
    with pytest.raises(TypeError, match="multiprocessing_context option should be a valid context object or a string"):
        loader(data, num_workers=1, multiprocessing_context=object())
    with pytest.raises(TypeError, match="not supported between"):
        loader(data, num_workers="2")
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        loader(data, workers=2)
    with pytest.raises(TypeError, match="takes from 2 to 14 positional arguments"):
        loader(data, *[None] * 13)


FROZEN_BY_TORCH = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


@both_loaders
@pytest.mark.parametrize("name", FROZEN_BY_TORCH)
@pytest.mark.parametrize("native", [True, False], ids=["files", "torch"])
def test_what_a_loader_is_made_of_stays(folder: ImageFolder, loader: Any, name: str, *, native: bool) -> None:
    """Setting one of these afterwards is a ValueError that names it; anything else may be set."""
    made = loader(folder if native else tensors_of())
    with pytest.raises(ValueError, match=f"^{name} attribute should not be set after DataLoader is initialized"):
        setattr(made, name, {})
    made.note = "mine"
    assert made.note == "mine"


@both_loaders
def test_a_subclass_may_prepare_itself_first(loader: Any) -> None:
    """Attributes of a subclass are its own, and the error has its name."""
    kind: Any = TorchLoader if loader is TorchLoader else DataLoader

    class Own(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.note = "before"
            super().__init__(*args, **options)

    made = Own(tensors_of(), **({} if loader is TorchLoader else {"device": "cpu"}))
    assert made.note == "before"
    with pytest.raises(ValueError, match="dataset attribute should not be set after Own is initialized"):
        made.dataset = None


@both_loaders
def test_what_was_given_can_be_read(loader: Any) -> None:
    """Under torch's names, as torch keeps it."""
    generator, sampler, data = torch.Generator(), RandomSampler(range(COUNT)), tensors_of()
    given: dict[str, Any] = {
        "sampler": sampler,
        "num_workers": 1,
        "collate_fn": len,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 7,
        "worker_init_fn": print,
        "generator": generator,
        "prefetch_factor": 5,
        "persistent_workers": True,
        "pin_memory_device": "",
        "in_order": True,
    }
    made = loader(data, 3, **given)
    assert made.dataset is data
    assert made.batch_size == 3
    assert {name: getattr(made, name) for name in given} == given
    assert loader(data, batch_sampler=[[1]]).batch_size is None
    assert loader(data, batch_size=None).batch_size is None


@pytest.mark.parametrize("steps", [None, 0, 1, 10])
def test_torchdatas_steps_between_snapshots_have_no_effect(steps: Any) -> None:
    """0 and None, by which torchdata asks its workers for none, are numbers of them too: a state is of any batch."""
    with DataLoader(tensors_of(), 2, device="cpu", snapshot_every_n_steps=steps) as made:
        next(iter(made))
        state = made.state_dict()
    with DataLoader(tensors_of(), 2, device="cpu") as made:
        made.load_state_dict(state)
        assert len(list(made)) == len(made) - 1
    with pytest.raises(ConfigError, match="snapshot_every_n_steps: must be an int of at least 0; found -1"):
        DataLoader(tensors_of(), 2, device="cpu", snapshot_every_n_steps=-1)


@both_loaders
def test_annotations_may_say_what_a_batch_is(loader: Any) -> None:
    """`DataLoader[list[torch.Tensor]]` is evaluated where annotations are."""
    kind: Any = TorchLoader if loader is TorchLoader else DataLoader
    assert kind[list[torch.Tensor]].__origin__ is kind


def test_who_runs_it_is_no_accident(folder: ImageFolder) -> None:
    """The two kinds of datasets of these tests are what they are taken for."""
    for data, kind in ((folder, Feed), (tensors_of(), TorchFeed), (Numbers(), TorchFeed), (Stream(), TorchFeed)):
        with DataLoader(data, device="cpu") as made:
            assert isinstance(running(made), kind)
