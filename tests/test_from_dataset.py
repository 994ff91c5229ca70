"""A torch map-style data set in a loader: what DataLoader gives, with a loader's order, resume and safety."""

from __future__ import annotations

import inspect
import itertools
import operator
import random
import re
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
from batches import FACES, plain, take_sync
from map_sets import SIZE, Drawing, Failing, Holder, Killing, Numbers, Together
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import aioload
from aioload import ConfigError, Loader, SampleError, WorkerError, dropin, from_dataset
from aioload.mapstyle import MapStyle
from aioload.travel import packed

WORKERS = [0, 1, 2]

Point = namedtuple("Point", "x y")


class Made(torch.utils.data.Dataset[Any]):
    """A data set of torch's that makes its samples by a function."""

    def __init__(self, make: Callable[[int], Any], size: int = 10) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


def numbers(batches: list[Any]) -> list[list[int]]:
    """The samples of each batch."""
    return [batch["n"].tolist() for batch in batches]


def taken(dataset: Any, **options: Any) -> list[Any]:
    """Take an epoch, and close."""
    return take_sync(from_dataset(dataset, **{"batch_size": 8, "num_workers": 0, **options}))


# The same batches -------------------------------------------------------------------------------------


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": lambda n: torch.full((2, 2), float(n)),
    "odd tensor": lambda n: torch.arange(12).reshape(3, 4).T[:, ::2] + n,
    "bfloat16": lambda n: torch.full((3,), n, dtype=torch.bfloat16),
    "tuple": lambda n: (torch.tensor([n]), n),
    "named tuple": lambda n: Point(n, np.float32(n)),
    "nested": lambda n: {"a": [n, {"b": np.float32(n)}], "text": f"t{n}", "raw": bytes([n])},
    "array": lambda n: np.full((3,), n, np.int16),
    "number": lambda n: n * 0.5,
    "bool": lambda n: n % 2 == 0,
    "text": lambda n: "x" * n,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_batches_are_those_of_a_dataloader(name: str) -> None:
    """Whatever a sample is made of, a batch of it is what `default_collate` makes."""
    dataset = Made(SAMPLES[name])

    found = taken(dataset, batch_size=4)

    expected = list(DataLoader(dataset, batch_size=4))
    assert list(map(plain, found)) == list(map(plain, expected))


def test_batches_of_workers_are_those_of_a_dataloader() -> None:
    """On the way through shared memory nothing becomes another kind, or lies otherwise."""
    dataset = Made(lambda number: {name: make(number) for name, make in SAMPLES.items()}, size=24)

    found = taken(dataset, batch_size=4, num_workers=2)

    expected = list(DataLoader(dataset, batch_size=4))
    assert list(map(plain, found)) == list(map(plain, expected))


@pytest.mark.parametrize("take", FACES)
def test_both_faces_give_all_samples(take: Callable[[Loader], list[Any]]) -> None:
    """Every number once, in order, in `len` batches, by `for` and by `async for`."""
    loader = from_dataset(Numbers(), batch_size=8, num_workers=1)

    found = take(loader)

    assert list(itertools.chain(*numbers(found))) == list(range(SIZE))
    assert len(found) == len(loader) == 8
    assert len(loader.dataset) == SIZE


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_a_shuffle_is_a_permutation(shuffle: Any) -> None:
    """Each number once in an order that changes with the epoch and the seed, and with nothing else."""
    loader = from_dataset(Numbers(), batch_size=SIZE, shuffle=shuffle, num_workers=0, seed=3)
    with loader.sync() as batches:
        first, second = (next(iter(batches))["n"].tolist() for _ in range(2))
    other = taken(Numbers(), batch_size=SIZE, shuffle=shuffle, seed=4)[0]["n"].tolist()

    again = numbers(taken(Numbers(), batch_size=SIZE, shuffle=shuffle, num_workers=2, seed=3))[0]

    assert sorted(first) == sorted(second) == sorted(other) == list(range(SIZE))
    assert again == first
    assert len({tuple(order) for order in (first, second, other)}) == 3


def test_a_collate_fn_of_torch_makes_the_batches() -> None:
    """What `DataLoader` takes as `collate_fn` is called with the samples as they came."""

    def collate_fn(samples: list[Any]) -> Any:
        assert all(type(sample) is tuple and type(sample[0]) is int for sample in samples)
        return torch.nn.utils.rnn.pad_sequence([sample[1] for sample in samples]), len(samples)

    dataset = Made(lambda number: (number, torch.full((number % 3 + 1,), number)))

    found = taken(dataset, num_workers=2, collate=collate_fn)

    expected = list(DataLoader(dataset, 8, collate_fn=collate_fn))
    assert [(shown.tolist(), count) for shown, count in found] == [
        (shown.tolist(), count) for shown, count in expected
    ]


def test_a_transform_gets_the_sample_as_it_came() -> None:
    """It sees what `__getitem__` returned and nothing beside, and may ask for an `rng`."""

    def transform(sample: Any, rng: np.random.Generator) -> Any:
        assert sorted(sample) == ["n", "text", "x"]
        return sample["n"], rng.random()

    found = [taken(Numbers(10), num_workers=workers, transform=transform) for workers in WORKERS]

    assert [batch[0].tolist() for batch in found[0]] == [list(range(8)), [8, 9]]
    assert len(set(found[0][0][1].tolist())) == 8
    assert [list(map(plain, one)) for one in found[1:]] == [list(map(plain, found[0]))] * 2


def test_torchs_own_data_sets_serve() -> None:
    """Subsets, several end to end and tensors, which hold no class of the user's."""
    tensors = TensorDataset(torch.arange(6.0), torch.arange(6))
    dataset = Subset(ConcatDataset([tensors, tensors]), [11, 0, 7])

    found = taken(dataset, num_workers=1)

    assert [part.tolist() for part in found[0]] == [[5.0, 0.0, 1.0], [5, 0, 1]]


def test_no_samples_are_no_batches() -> None:
    """An empty data set has epochs of no batch."""
    loader = from_dataset(Numbers(0), batch_size=8, num_workers=1)

    found = take_sync(loader)

    assert (found, len(loader), loader.epoch) == ([], 0, 1)


def test_random_numbers_depend_on_the_sample_alone() -> None:
    """All global generators give the same with any number of workers, and other numbers in another epoch."""
    dataset = Made(lambda number: (random.random(), np.random.random(), torch.rand(2)))
    epochs = []
    for workers in WORKERS:
        with from_dataset(dataset, batch_size=4, num_workers=workers).sync() as batches:
            epochs.append([[list(map(plain, batch)) for batch in batches] for _ in range(2)])

    first, second = epochs[0]
    assert epochs[1:] == [epochs[0]] * 2
    assert not any(map(operator.eq, itertools.chain(*first), itertools.chain(*second)))


def test_samples_may_be_asked_for_together() -> None:
    """With `batched` a whole batch, or a part of it, is one call of `__getitems__`."""
    found = taken(Together(), batched=True, num_workers=2)

    assert list(itertools.chain(*numbers(found))) == list(range(SIZE))
    assert found[-2]["together"].min() > 1
    assert [batch["n"].tolist() for batch in taken(Together(), batched=True)] == numbers(found)


def test_one_sample_of_many_is_named() -> None:
    """Where asking together fails, the error names the one sample, and skipping costs that one alone."""
    with pytest.raises(SampleError, match=re.escape("bad ones among [13]")) as error:
        taken(Together(13), batched=True, num_workers=1)
    found = taken(Together(13), batched=True, num_workers=1, on_error="skip")

    assert error.value.record == 13
    assert list(itertools.chain(*numbers(found))) == [n for n in range(SIZE) if n != 13]


# Stop and go on, ranks --------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 7])
def test_a_state_goes_on_at_the_very_next_sample(stop: int, shuffle: bool) -> None:
    """With other workers and another batch size the rest of the epoch comes, values drawn included."""
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 5}
    whole = taken(Drawing(), batch_size=1, **options)
    with from_dataset(Drawing(), batch_size=8, num_workers=2, **options).sync() as batches:
        list(itertools.islice(batches, stop))
        state = batches.state_dict()

    with from_dataset(Drawing(), batch_size=1, num_workers=1, **options).sync() as batches:
        batches.load_state_dict(state)
        rest = list(batches)

    assert list(map(plain, rest)) == list(map(plain, whole[8 * stop :]))


@pytest.mark.parametrize(
    "other",
    [
        from_dataset(Numbers(SIZE + 1), batch_size=8),
        from_dataset(Drawing(), batch_size=8),
        from_dataset(Numbers(), batch_size=8, version=2),
        from_dataset(Subset(Numbers(), range(SIZE)), batch_size=8),
    ],
    ids=["size", "class", "version", "subset"],
)
def test_a_state_of_other_data_is_refused(other: Loader) -> None:
    """Number of samples, class, version and the picks of a subset are compared."""
    state = from_dataset(Numbers(), batch_size=8).state_dict()

    with pytest.raises(ConfigError, match="made with other data"):
        other.load_state_dict(state)


def test_another_split_of_the_same_size_is_other_data() -> None:
    """A random split that came out differently does not go on as if it were the same."""
    first, second = (Subset(Numbers(), picks) for picks in ([1, 2, 3], [1, 2, 4]))
    state = from_dataset(first, batch_size=2).state_dict()

    from_dataset(Subset(Numbers(), [1, 2, 3]), batch_size=2).load_state_dict(state)
    with pytest.raises(ConfigError, match="made with other data"):
        from_dataset(second, batch_size=2).load_state_dict(state)


def test_ranks_share_the_samples() -> None:
    """Over all ranks each sample comes once, padding aside, in equal numbers of batches."""
    found = []
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "shuffle": True, "num_workers": 0}
        with from_dataset(Numbers(), batch_size=4, **options).sync() as batches:
            mine = numbers(list(batches))
            found.append((len(mine), [*itertools.chain(*mine)][: -batches.padded or None]))

    assert len({count for count, _ in found}) == 1
    assert sorted(itertools.chain(*(mine for _, mine in found))) == list(range(SIZE))


# When something is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_sample(workers: int) -> None:
    """What `__getitem__` raises comes in its batch's place and tells the number; what was before comes."""
    found: list[Any] = []
    loader = from_dataset(Failing(20), batch_size=8, num_workers=workers)

    with loader.sync() as batches, pytest.raises(SampleError, match="nothing at 20") as error:
        found.extend(iter(batches))

    assert str(error.value) == "record 20 (Failing): IndexError: nothing at 20"
    assert numbers(found) == [list(range(8)), list(range(8, 16))]
    assert (error.value.record, error.value.step) == (20, 2)


def test_samples_that_fail_can_be_left_out() -> None:
    """`on_error` skips them, and `skipped` lists them."""
    loader = from_dataset(Failing(3, 20), batch_size=8, num_workers=2, on_error="skip")

    found = take_sync(loader)

    assert len(found) == len(loader)
    assert list(itertools.chain(*numbers(found))) == [n for n in range(SIZE) if n not in (3, 20)]
    assert [gone.record for gone in loader.skipped] == [3, 20]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path, workers: int) -> None:
    """It is replaced, gets the data set anew, and the batches are the same in the same order."""
    dataset = Killing(tmp_path / "died", 20)
    loader = from_dataset(dataset, batch_size=8, shuffle=True, num_workers=workers)

    found = take_sync(loader)

    assert list(map(plain, found)) == list(map(plain, taken(Numbers(), shuffle=True)))
    assert loader.stats().restarts == 1


def test_a_sample_that_kills_is_named(tmp_path: Path) -> None:
    """A sample over which two workers die is the error, with its number."""
    loader = from_dataset(Killing(tmp_path / "died", 20, always=True), batch_size=8, num_workers=1)

    with pytest.raises(WorkerError, match=r"record 20 \(Killing\).*SIGKILL") as error:
        take_sync(loader)

    assert error.value.record == 20


class Endless(IterableDataset[int]):
    """An iterable data set of torch's."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Endless(), "Endless is an iterable data set"),
        ((n for n in range(3)), "generator is an iterable data set"),
        (7, "int has no __getitem__"),
        (type("NoLength", (), {"__getitem__": lambda self, n: n})(), "NoLength does not tell how many"),
        ("data/train", r"a str goes to aioload\.Loader"),
        (DataLoader(range(3)), "DataLoader makes batches already"),  # type: ignore[arg-type]  # will do
        (Loader(MapStyle([1, 2]), batch_size=1), "Loader makes batches already"),
        (MapStyle([1, 2]), r"a MapStyle goes to aioload\.Loader"),
    ],
    ids=["torch", "generator", "number", "no length", "path", "theirs", "ours", "wrapped"],
)
def test_what_is_no_map_style_data_set_is_refused(dataset: Any, message: str) -> None:
    """At once, with what to do instead."""
    with pytest.raises(ConfigError, match=message):
        from_dataset(dataset, batch_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "block"}, "shuffle must be"),
        ({"batch_size": aioload.batching.Budget(max_cost=100)}, "batch_size must be"),
        ({"version": 1.5}, "version must be"),
        ({"batched": True}, "Numbers has no __getitems__"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """What means something for packed records alone, and what nobody could compare."""
    with pytest.raises(ConfigError, match=message):
        from_dataset(Numbers(), **{"batch_size": 8, **options})


def test_options_are_those_of_a_loader() -> None:
    """Each has the loader's name and default; those that are left out speak of stored records."""
    own, loaders = (inspect.signature(taker).parameters for taker in (from_dataset, Loader))

    stored = {"decode", "prepare", "cache", "lanes", "block_bytes", "reads", "remote_reads"}
    assert set(loaders) - set(own) == stored | {"executor"}
    assert set(own) - set(loaders) == {"batched", "version"}
    assert {name: own[name].default for name in set(own) & set(loaders)} == {
        name: loaders[name].default for name in set(own) & set(loaders)
    }


@pytest.mark.parametrize("name", sorted(set(inspect.signature(DataLoader).parameters)))
def test_options_of_a_data_loader_are_taken_or_answered(name: str) -> None:
    """Whoever swaps a DataLoader has no unknown option: the error says what takes its place."""
    if name in inspect.signature(from_dataset).parameters:
        return

    with pytest.raises(ConfigError, match=rf"{name}= is an option of DataLoader: \w+"):
        from_dataset(Numbers(), batch_size=8, **{name: None})


def test_it_does_not_mix_with_packed_sets() -> None:
    """`Concat` and `Mix` refuse it by name, and a block shuffle of a loader does, too."""
    wrapped = from_dataset(Numbers(), batch_size=8).dataset

    with pytest.raises(ConfigError):
        aioload.Concat([wrapped, wrapped])
    with pytest.raises(ConfigError):
        aioload.Mix([(wrapped, 1.0), (wrapped, 1.0)])
    with pytest.raises(ConfigError, match="no blocks"):
        take_sync(Loader(wrapped, batch_size=8, shuffle=True, num_workers=0))


def test_a_loader_that_is_given_one_says_where_it_belongs() -> None:
    """`Loader` takes packed sets, and its error names the function for others."""
    with pytest.raises(ConfigError, match=r"aioload\.from_dataset"):
        Loader(Numbers(), batch_size=8)


def test_a_limit_that_is_too_small_is_refused() -> None:
    """The first batch tells what is needed, and the error names it, without blaming any record."""
    large = Made(lambda number: np.full(1 << 20, number, np.uint8), size=8)

    with pytest.raises(ConfigError, match="are enough") as error:
        taken(large, memory_limit="2MiB")
    found = taken(large, memory_limit=error.value.needed)

    assert error.value.record is None
    assert found[0][:, -1].tolist() == list(range(8))


# On the way to the workers ----------------------------------------------------------------------------


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    """The innermost attribute that cannot be pickled is in the error, with what to do."""
    with (tmp_path / "x").open("wb") as file:
        dataset = Holder({"index": [1, 2], "readers": [Holder(file)]})

        with pytest.raises(
            ConfigError, match=r"Holder\.held\['readers'\]\[0\]\.held is a _io\.Buff"
        ) as error:
            from_dataset(dataset, batch_size=8)

    assert "on first use in __getitem__" in str(error.value)


def test_what_cannot_travel_serves_without_workers() -> None:
    """In this process a lock may be held."""
    dataset = Numbers(8)
    dataset.lock = threading.Lock()

    found = taken(dataset, num_workers=0)

    assert numbers(found) == [list(range(8))]


def test_a_mapped_file_travels_by_name(tmp_path: Path) -> None:
    """Workers map it themselves, wherever in it the array begins; what is not in one piece is copied."""
    np.save(tmp_path / "x.npy", np.arange(400_000).reshape(4000, 100))
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")

    found = taken(Holder(whole[10:]), batch_size=4, num_workers=1)

    assert found[1][1].tolist() == whole[14:18].tolist()
    assert all(len(packed(part)) < 1000 for part in (whole, whole[7], whole[10:], np.asarray(whole), whole.T))
    assert len(packed(whole[:, :50])) > 4000 * 50 * 8


def test_data_that_each_worker_would_copy_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Where the copies would take more than half of the memory there is a warning, for mapped data never."""
    monkeypatch.setattr(dropin, "available_memory", lambda: 64 << 20)
    held = np.zeros(11 << 20, np.uint8)
    np.save(tmp_path / "x.npy", held)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")

    from_dataset(Holder(held), batch_size=8, num_workers=1)
    from_dataset(Holder(held), batch_size=8, num_workers=0)
    from_dataset(Holder(mapped), batch_size=8, num_workers=2)
    silent = len(recwarn)
    with pytest.warns(UserWarning, match="Holder holds 11.0 MiB, which each of 2 workers copies"):
        from_dataset(Holder(held), batch_size=8, num_workers=2)

    assert silent == 0


def test_a_data_set_of_the_main_script_needs_no_guard(tmp_path: Path) -> None:
    """A script without a main guard may define its class, and lambdas; a worker without torch has none."""
    script = """
        import sys
        import aioload

        class Plain:
            make = lambda self, number: (number, "torch" in sys.modules)
            def __len__(self): return 10
            def __getitem__(self, number): return self.make(number)

        with aioload.from_dataset(Plain(), batch_size=4, num_workers=2).sync() as batches:
            for numbers, had_torch in batches:
                print(numbers.tolist(), had_torch.any().item())
    """

    ended = scripts.run(script, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == ["[0, 1, 2, 3] False", "[4, 5, 6, 7] False", "[8, 9] False"]


def test_torch_is_imported_once_for_all_workers(tmp_path: Path) -> None:
    """Workers are forks of a process that has imported it, for a class of torch's, with one thread each."""
    script = """
        import aioload, os, torch

        class Threads(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, number):
                with open(f"/proc/{os.getppid()}/maps") as maps:
                    forked = "libtorch" in maps.read()
                return forked, torch.get_num_threads(), torch.utils.data.get_worker_info() is None

        with aioload.from_dataset(Threads(), batch_size=2, num_workers=2).sync() as batches:
            print(*(part.tolist() for batch in batches for part in batch))
    """

    ended = scripts.run(script, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.strip() == " ".join(["[True, True] [1, 1] [True, True]"] * 2)


def test_a_sample_can_be_looked_at() -> None:
    """`loader.dataset` gives samples by number, and the user's own data set."""
    dataset = Numbers()
    wrapped = from_dataset(dataset, batch_size=8).dataset

    assert (wrapped[3]["n"], wrapped[-1]["n"]) == (3, SIZE - 1)
    assert wrapped.dataset is dataset
    with pytest.raises(IndexError):
        wrapped[SIZE]
