"""The loader gives every record once, in order, as decoded by hand, and keeps to its memory."""

from __future__ import annotations

import gc
import io
import wave
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batches
import numpy as np
import pytest
import torch
from batches import FACES, counted, gather, pack, plain, take_sync
from conftest import TINY_RECORDS, TinySet
from fakes import Gate
from makes import Pair, Point

import aioload
from aioload import ConfigError, Loader, collate

Face = Callable[[Loader], list[Any]]


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4000)


@pytest.fixture(scope="session")
def decoded(hundred: Path) -> list[Any]:
    """Their samples, taken one by one."""
    return list(aioload.Dataset(hundred))


# Content and order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_record_comes_once_in_order(
    tiny_set: TinySet, num_workers: int, batch_size: int, take: Face
) -> None:
    """Each record is in its place with the values that decoding by hand gives."""
    sizes = [min(batch_size, TINY_RECORDS - start) for start in range(0, TINY_RECORDS, batch_size)]

    found = take(Loader(tiny_set.path, batch_size=batch_size, num_workers=num_workers))

    assert [len(batch["label"]) for batch in found] == sizes
    assert torch.cat([batch["image"] for batch in found]).numpy().tobytes() == b"".join(
        pixels.tobytes() for pixels in tiny_set.pixels
    )
    assert torch.cat([batch["label"] for batch in found]).tolist() == tiny_set.labels
    assert [name for batch in found for name in batch["name"]] == tiny_set.names


@pytest.mark.parametrize("batch_size", [7, 200])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(hundred: Path, num_workers: int, batch_size: int) -> None:
    """Three epochs are the same with and without workers, also those in which the layout is known."""
    options = {"batch_size": batch_size, "transform": lambda sample: sample}
    with Loader(hundred, num_workers=0, **options).sync() as alone:
        expected = [[plain(batch) for batch in alone] for _ in range(3)]

    with Loader(hundred, num_workers=num_workers, **options).sync() as loader:
        found = [[plain(batch) for batch in loader] for _ in range(3)]

    assert found == expected
    assert [len(epoch) for epoch in found] == [-(-100 // batch_size)] * 3


def test_a_batch_is_torch_tensors_and_lists(tiny_set: TinySet) -> None:
    """Images are uint8 (N, H, W, 3), ints are int64, text is a list; each is the user's to write to."""
    with Loader(tiny_set.path, batch_size=4, num_workers=1).sync() as loader:
        batch = next(iter(loader))

    batch["image"].zero_()
    batch["label"] += 1

    assert list(batch) == ["image", "label", "name"]
    assert (batch["image"].dtype, tuple(batch["image"].shape)) == (torch.uint8, (4, 8, 6, 3))
    assert (batch["label"].dtype, batch["label"].tolist()) == (torch.int64, [1, 2, 3, 1])
    assert int(batch["image"].sum()) == 0
    assert type(batch["name"]) is list


def test_a_writable_batch_does_not_change_the_next_epoch(tiny_set: TinySet) -> None:
    """What the user does to a batch is seen in no other."""
    with Loader(tiny_set.path, batch_size=5, num_workers=1).sync() as loader:
        for batch in loader:
            batch["image"].fill_(7)
        again = torch.cat([batch["image"] for batch in loader])

    assert again.numpy().tobytes() == b"".join(pixels.tobytes() for pixels in tiny_set.pixels)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_prefetch_of_one(hundred: Path, num_workers: int) -> None:
    """With one batch ahead all come, in order."""
    found = take_sync(Loader(hundred, batch_size=3, num_workers=num_workers, prefetch=1))

    assert torch.cat([batch["n"] for batch in found]).tolist() == list(range(100))


def test_prefetch_bounds_what_is_made_ahead(hundred: Path, tmp_path: Path) -> None:
    """While the first batch is not taken, the second of `prefetch=2` is made and the third is not."""
    made = tmp_path / "made"
    made.mkdir()

    def note(sample: Any) -> Any:
        (made / f"{sample['n']}").touch()
        return sample

    with Gate(tmp_path, then=note) as gate:
        loader = Loader(hundred, batch_size=2, num_workers=1, prefetch=2, transform=gate)
        batches = iter(loader.sync())
        gate.open(100)
        first = next(batches)
        second = next(batches)
        seen = {int(file.name) for file in made.iterdir()}
        loader.close()

    assert (first["n"].tolist(), second["n"].tolist()) == ([0, 1], [2, 3])
    assert seen <= set(range(8))


# Epochs and lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (30, False, [30, 30, 30, 10]),
        (30, True, [30, 30, 30]),
        (25, True, [25, 25, 25, 25]),
        (101, False, [100]),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_len_is_the_number_of_batches(
    hundred: Path, batch_size: int, drop_last: bool, sizes: list[int], num_workers: int
) -> None:
    """`len` tells, before anything was loaded, how many batches come; only the last one may be short."""
    loader = Loader(hundred, batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)
    length = len(loader)

    found = take_sync(loader)

    assert [len(batch["n"]) for batch in found] == sizes
    assert length == len(loader.sync()) == len(sizes)


def test_an_epoch_counts_when_it_was_handed_out_whole(hundred: Path) -> None:
    """`break` stays in its epoch; the end of the loop goes on to the next; `set_epoch` chooses."""
    with Loader(hundred, batch_size=50, num_workers=0).sync() as loader:
        for _ in loader:
            break
        after_break = loader.epoch
        for _ in loader:
            pass
        after_whole = loader.epoch
        loader.set_epoch(7)
        list(loader)
        after_set = loader.epoch

    assert (after_break, after_whole, after_set) == (0, 1, 8)


def test_the_last_batch_does_not_yet_end_the_epoch_of_a_new_pass(hundred: Path) -> None:
    """An exhausted iterator stays exhausted, and a new one starts from the beginning."""
    with Loader(hundred, batch_size=60, num_workers=0).sync() as loader:
        first = iter(loader)
        taken = [len(batch["n"]) for batch in first]
        more = list(first)
        again = [batch["n"][0].item() for batch in loader]

    assert taken == [60, 40]
    assert more == []
    assert again == [0, 60]


def test_an_empty_set_has_no_batch(tmp_path: Path) -> None:
    """A set without records gives no batch and no error, in async and sync."""
    path = pack(tmp_path / "set", {"n": "int"}, [])

    found = [take(Loader(path, batch_size=4, num_workers=1)) for take in FACES]

    assert found == [[], []]
    assert len(Loader(path, batch_size=4)) == 0


def test_another_iteration_takes_over(hundred: Path) -> None:
    """A new pass begins at the beginning; the old iterator says who took its place."""
    with Loader(hundred, batch_size=10, num_workers=1).sync() as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)

        with pytest.raises(aioload.ClosedError, match="another iteration") as caught:
            next(old)
        firsts = [batch["n"][0].item() for batch in new]

    assert firsts == list(range(0, 100, 10))
    assert "one iterator at a time" in str(caught.value)


# Fields -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_fields_of_every_kind(tmp_path: Path, num_workers: int) -> None:
    """Text, bytes, json, arrays, numbers and sound come as the decoders make them."""
    extras = [{"boxes": [[record, 1.5]], "name": "ä", "none": record} for record in range(5)]
    samples = [
        {
            "text": "é" * record,
            "blob": bytes(range(record)),
            "extra": extras[record],
            "array": np.full((2,), record, np.int16),
            "share": record / 2,
            "sound": wav(np.full((3, 2), record * 100, np.int16)),
        }
        for record in range(5)
    ]
    kinds = {
        "text": "str",
        "blob": "bytes",
        "extra": "json",
        "array": "ndarray",
        "share": "float",
        "sound": "audio",
    }
    path = pack(tmp_path / "set", kinds, samples)

    found = take_sync(Loader(path, batch_size=2, num_workers=num_workers))

    assert [value for batch in found for value in batch["text"]] == ["é" * record for record in range(5)]
    assert [value for batch in found for value in batch["blob"]] == [
        bytes(range(record)) for record in range(5)
    ]
    assert torch.cat([batch["extra"]["none"] for batch in found]).tolist() == [0, 1, 2, 3, 4]
    assert [batch["array"].dtype for batch in found] == [torch.int16] * 3
    assert torch.cat([batch["share"] for batch in found]).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert found[1]["sound"]["samples"].dtype == torch.float32
    assert found[1]["sound"]["samples"].shape == (2, 2, 3)
    assert found[1]["sound"]["samples"][1].unique().tolist() == [np.float32(300 / 32768)]
    assert found[1]["sound"]["rate"].tolist() == [8000, 8000]


def test_raw_gives_the_stored_bytes(tiny_set: TinySet) -> None:
    """A field decoded as "raw" comes as it was packed, and another goes to a decoder of the user's own."""
    options = {"decode": {"image": "raw", "label": lambda data: len(data)}}

    batch = take_sync(Loader(tiny_set.path, batch_size=24, num_workers=1, **options))[0]

    assert all(value.startswith(b"\x89PNG") for value in batch["image"])
    assert batch["label"].tolist() == [8] * 24


def test_the_sample_carries_its_key(tmp_path: Path) -> None:
    """A transform sees `__key__`, a text: the record's key, or else its number; batches do not have it."""
    with aioload.Writer(tmp_path / "set", {"n": "int"}) as writer:
        writer.write({"n": 0}, key="first")
        writer.write({"n": 1})
    keep = {"transform": lambda sample: {"key": sample["__key__"], **sample}}

    with_transform = take_sync(Loader(tmp_path / "set", batch_size=2, num_workers=0, **keep))[0]
    without = take_sync(Loader(tmp_path / "set", batch_size=2, num_workers=0))[0]

    assert with_transform["key"] == ["first", "1"]
    assert list(without) == ["n"]


# Collate and containers -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [3, 100])
def test_a_lambda_collates(hundred: Path, num_workers: int, batch_size: int) -> None:
    """A collate of the user's own gets the samples in order, once, and what it returns is the batch."""
    options = {
        "collate": lambda samples: {"sum": sum(s["n"] for s in samples), "all": [s["n"] for s in samples]}
    }

    found = take_sync(Loader(hundred, batch_size=batch_size, num_workers=num_workers, **options))

    assert [n for batch in found for n in batch["all"]] == list(range(100))
    assert [batch["sum"] for batch in found] == [sum(batch["all"]) for batch in found]


@pytest.mark.parametrize(
    "make",
    [
        lambda sample: {"a": {"b": [sample["n"], (sample["n"], sample["text"])]}, "c": sample["array"]},
        lambda sample: Point(sample["n"], Point(sample["array"], sample["text"])),
        lambda sample: Pair(sample["array"], sample["n"]),
        lambda sample: (sample["n"], sample["array"].T),
        lambda sample: OrderedDict(z=sample["n"], a=sample["array"].astype(np.float16)),
        lambda sample: [sample["n"], True, 1.5, sample["text"].encode()],
        lambda sample: sample["n"],
        lambda sample: sample["array"][..., None],
        lambda sample: sample["text"],
        lambda sample: {
            "torch": torch.full((2, 2), sample["n"], dtype=torch.bfloat16),
            "n": torch.tensor(sample["n"]),
        },
        lambda sample: {
            "zero": np.zeros((0, 3)),
            "scalar": np.float16(sample["n"]),
            "empty": {},
            "none": [],
        },
        lambda sample: {"complex": np.full(2, sample["n"], np.complex64), "flag": np.bool_(sample["n"] % 2)},
    ],
    ids=[
        *(
            "nested",
            "namedtuple",
            "dataclass",
            "tuple",
            "ordered",
            "list",
            "number",
            "array",
            "text",
            "torch",
        ),
        *("empty", "complex"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_any_make_stack_as_by_hand(
    hundred: Path, decoded: list[Any], make: Callable[[Any], Any], num_workers: int
) -> None:
    """Containers come back as their own classes, and leaves as `collate.default` makes them."""
    samples = [make(sample) for sample in decoded]
    expected = [plain(collate.default(samples[start : start + 40])) for start in range(0, 100, 40)]

    with Loader(hundred, batch_size=40, num_workers=num_workers, transform=make).sync() as loader:
        found = [[plain(batch) for batch in loader] for _ in range(2)]

    assert found == [expected, expected]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ready_collates(hundred: Path, num_workers: int) -> None:
    """`as_list` gives the samples, `pad` evens out lengths, `by_field` treats one field in its own way."""
    ragged = {"transform": lambda sample: {"x": np.arange(sample["n"] % 3, dtype=np.int32), "n": sample["n"]}}
    size = {"batch_size": 5, "num_workers": num_workers}

    listed = take_sync(Loader(hundred, collate=collate.as_list, **size))[0]
    padded = take_sync(Loader(hundred, collate=collate.pad(value=-1), **size, **ragged))[0]
    by_field = take_sync(Loader(hundred, collate=collate.by_field({"x": collate.as_list}), **size, **ragged))[
        0
    ]

    assert [sample["n"] for sample in listed] == [0, 1, 2, 3, 4]
    assert padded["x"].tolist() == [[-1, -1], [0, -1], [0, 1], [-1, -1], [0, -1]]
    assert [len(value) for value in by_field["x"]] == [0, 1, 2, 0, 1]
    assert by_field["n"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dtypes_do_not_depend_on_who_came_first(hundred: Path, num_workers: int) -> None:
    """A float among the integers makes its batch float, wherever it stands and whatever came before."""
    odd = {"transform": lambda sample: {"x": 0.5 if sample["n"] in (0, 35, 99) else sample["n"]}}

    with Loader(hundred, batch_size=10, num_workers=num_workers, **odd).sync() as loader:
        dtypes = [[batch["x"].dtype for batch in loader] for _ in range(3)]

    whole, part = torch.int64, torch.float64
    assert dtypes == [[part, whole, whole, part, whole, whole, whole, whole, whole, part]] * 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shapes_may_differ_from_batch_to_batch(hundred: Path, num_workers: int) -> None:
    """Batches of other shapes, keys and kinds than the first are made all the same."""

    def change(sample: Any) -> Any:
        number = sample["n"]
        if number < 30:
            return {"x": np.zeros(3, np.uint8)}
        if number < 60:
            return {"x": np.zeros((1, number // 10), np.float32), "text": "t" * number}
        return (number, [sample["text"]])

    with Loader(hundred, batch_size=10, num_workers=num_workers, transform=change).sync() as loader:
        epochs = [list(loader) for _ in range(2)]

    assert [tuple(batch["x"].shape) for batch in epochs[1][:6]] == [
        *[(10, 3)] * 3,
        *[(10, 1, n) for n in (3, 4, 5)],
    ]
    assert [batch[0][0].item() for batch in epochs[1][6:]] == [60, 70, 80, 90]
    assert [len(text) for text in epochs[0][5]["text"]] == list(range(50, 60))


def test_arrays_without_a_torch_dtype_are_named(hundred: Path) -> None:
    """An array that torch cannot hold is an error with its dtype, not a wrong tensor."""
    dates = {"transform": lambda sample: {"when": np.array(["2024-01-01"], "M8[D]")}}

    with pytest.raises(aioload.SampleError, match=r"M8|datetime64") as caught:
        take_sync(Loader(hundred, batch_size=10, num_workers=1, **dates))

    assert caught.value.field == "when"


# Memory -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """Records from 10 B to 5 MB in no good order, and what is in them."""
    random = np.random.default_rng(5)
    sizes = [10, 5_000_000, 100, 70_000, 1000, 2_000_000, 10, 300_000, 12, 4_999_999, 0, 1] * 3
    blobs = [random.bytes(size) for size in sizes]
    path = tmp_path_factory.mktemp("mixed") / "set"
    return pack(path, {"blob": "bytes"}, [{"blob": blob} for blob in blobs], shard_bytes=8 << 20), blobs


@pytest.mark.parametrize("batch_size", [1, 5, 36])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_records_of_very_different_sizes(
    mixed: tuple[Path, list[bytes]], num_workers: int, batch_size: int
) -> None:
    """Records from 10 B to 5 MB come as they were packed, within the memory limit."""
    path, blobs = mixed

    with Loader(path, batch_size=batch_size, num_workers=num_workers, memory_limit="512MiB").sync() as loader:
        found = [blob for batch in loader for blob in batch["blob"]]
        peak = loader.stats().memory_peak

    assert found == blobs
    assert peak <= 512 << 20


@pytest.mark.parametrize("batch_size", [1, 5, 36])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_limit_that_is_too_small_names_a_larger_one(
    mixed: tuple[Path, list[bytes]], num_workers: int, batch_size: int
) -> None:
    """A limit in which a batch has no room is a ConfigError; to follow what they name leads to all data."""
    path, blobs = mixed

    refused, found = _follow(path, batch_size=batch_size, num_workers=num_workers)

    assert 1 <= len(refused) <= 8
    assert refused == sorted(set(refused))
    assert [blob for batch in found for blob in batch["blob"]] == blobs


def test_a_limit_that_is_too_small_names_one_that_works(mixed: tuple[Path, list[bytes]]) -> None:
    """The very first limit that is named does work."""
    refused, _ = _follow(mixed[0], batch_size=5, num_workers=2)

    assert len(refused) == 1


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,400 records of 10,000 bytes."""
    samples = ({"n": record, "x": np.full(10_000, record % 251, np.uint8)} for record in range(2400))
    return pack(tmp_path_factory.mktemp("large") / "set", {"n": "int", "x": "ndarray"}, samples)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kept_batches_never_change(large: Path, num_workers: int) -> None:
    """300 kept batches, thrice what the limit holds, are right at the end and after closing; one warning."""
    numbers = np.arange(2400).reshape(300, 8)

    with batches.Warnings() as warned:
        loader = Loader(large, batch_size=8, num_workers=num_workers, memory_limit="8MiB")
        with loader.sync() as source:
            kept = list(source)
            peak = loader.stats().memory_peak
            for _ in source:  # what is kept is not read over
                pass
        gc.collect()

    assert np.array_equal(np.stack([batch["n"].numpy() for batch in kept]), numbers)
    assert all(np.ptp(batch["x"].numpy(), axis=1).max() == 0 for batch in kept)
    assert np.array_equal(np.stack([batch["x"][:, 0].numpy() for batch in kept]), numbers % 251)
    assert peak <= 8 << 20
    assert len(warned.messages) == 1
    assert "memory_limit" in warned.messages[0]


def test_views_outlive_the_loader(large: Path) -> None:
    """A view of a batch that was let go stays right when the loader goes on, closes and is collected."""
    loader = Loader(large, batch_size=8, num_workers=1, memory_limit="8MiB")
    source = iter(loader.sync())
    view = next(source)["x"][3:5, ::2]
    array = next(source)["n"].numpy()[::-1]

    for _ in source:
        pass
    loader.close()
    del loader, source
    gc.collect()

    assert view.unique().tolist() == [3, 4]
    assert array.tolist() == list(range(15, 7, -1))


def test_batches_let_go_are_not_copied(large: Path) -> None:
    """Whoever keeps nothing gets each batch in place: no copies, no warning."""
    loader = Loader(large, batch_size=8, num_workers=1, memory_limit="64MiB")

    with batches.Warnings() as warned, loader.sync() as source:
        total = sum(int(batch["n"].sum()) for batch in source)
        stats = loader.stats()

    assert total == sum(range(2400))
    assert stats.copies == 0
    assert warned.messages == []


# Options, and looking ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": "many"}, "num_workers"),
        ({"num_workers": 1.0}, "num_workers"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": "all"}, "prefetch"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"memory_limit": "lots"}, "memory_limit"),
        ({"memory_limit": "-1GiB"}, "memory_limit"),
        ({"memory_limit": 1.5}, "memory_limit"),
        ({"memory_limit": None}, "memory_limit"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"reads": "fast"}, "reads"),
        ({"decode": {"image": 3}}, r"decode\['image'\]"),
        ({"decode": "raw"}, "decode"),
        ({"transform": 3}, "transform"),
        ({"collate": "stack"}, "collate"),
        ({"transform": lambda sample, other: sample}, "transform must take"),
        ({"transform": lambda: 1}, "transform must take"),
        ({"transform": lambda rng: rng}, "transform must take"),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_wrong_options_are_refused_at_once(
    tiny_set: TinySet, options: dict[str, Any], names: str, num_workers: int
) -> None:
    """An option that cannot work is a ConfigError at construction that names it."""
    given: dict[str, Any] = {"batch_size": 4, "num_workers": num_workers, **options}

    with pytest.raises(ConfigError, match=names):
        Loader(tiny_set.path, **given)


def test_a_decoder_for_no_field_is_refused(tiny_set: TinySet) -> None:
    """A decoder for a field that is not there is a ConfigError with the fields there are."""
    loader = Loader(tiny_set.path, batch_size=4, num_workers=0, decode={"picture": "raw"})

    with pytest.raises(ConfigError, match=r"picture.*image.*label.*name"):
        take_sync(loader)


@pytest.mark.parametrize("limit", ["8MiB", 8 << 20, "8 mib", "0.008 GB", np.int64(8 << 20)])
def test_limits_are_written_as_people_do(tiny_set: TinySet, limit: Any) -> None:
    """A limit is a number or a text with a unit."""
    with Loader(tiny_set.path, batch_size=4, num_workers=0, memory_limit=limit).sync() as loader:
        list(loader)

    assert 8_000_000 <= loader.stats().memory_limit <= 8 << 20


def test_auto_takes_the_cpus_of_this_rank(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """`num_workers="auto"` is at least one, and shared by the ranks of the machine."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")

    loader = Loader(tiny_set.path, batch_size=4)

    assert loader.num_workers == 1


def test_stats_count_what_was_handed_out(hundred: Path) -> None:
    """Batches, samples and bytes are those the user got; reads brought each byte once, and begin anew."""
    with Loader(hundred, batch_size=30, num_workers=1, reads="file").sync() as loader:
        before = loader.report()
        found = list(loader)
        stats = loader.stats()
        report = loader.report()
        size = int(loader.dataset.index.positions[-1])

    assert before == "no batch has been handed out yet"
    assert (stats.batches, stats.samples, stats.num_workers) == (4, 100, 1)
    assert stats.batch_bytes >= sum(batch["array"].nbytes for batch in found)
    assert stats.read_bytes in (size, 2 * size)  # the next epoch begins ahead
    assert 0 < stats.first_batch_seconds <= stats.wait_seconds
    assert "4 batches, 100 samples" in report


def test_repr_shows_the_state(tiny_set: TinySet) -> None:
    """`repr` tells set, batch size, epoch and whether it was closed, of both faces, and never data."""
    loader = Loader(tiny_set.path, batch_size=4, num_workers=0)
    opened = repr(loader)
    loader.close()

    assert opened == f"<Loader {str(tiny_set.path)!r} batch_size=4 epoch=0 workers=0>"
    assert repr(loader.sync()) == f"<SyncLoader of <Loader {str(tiny_set.path)!r} batch_size=4 closed>>"


def test_nothing_is_read_at_construction(tmp_path: Path) -> None:
    """A loader of a set that is not there can be made; the error comes when something is asked of it."""
    loader = Loader(tmp_path / "nowhere", batch_size=4)

    with pytest.raises(ConfigError, match="nowhere is neither a folder nor a file"):
        len(loader)


async def test_async_gives_the_same_in_a_running_loop(hundred: Path) -> None:
    """`async for` in the test's own loop, twice, gives what the plain `for` gives."""
    expected = [plain(batch) for batch in take_sync(Loader(hundred, batch_size=9, num_workers=0))]

    async with Loader(hundred, batch_size=9, num_workers=2) as loader:
        found = [[plain(batch) for batch in await gather(loader)] for _ in range(2)]

    assert found == [expected, expected]


def wav(samples: np.ndarray) -> bytes:
    """Encode int16 (frames, channels) as a WAV file of 8 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((samples.shape[1], 2, 8000, 0, "NONE", ""))
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def _follow(path: Path, **options: Any) -> tuple[list[int], list[Any]]:
    """Load under a tiny limit, then under each that an error names; return the refused ones, and the data."""
    refused = [1 << 20]
    while len(refused) < 10:
        try:
            return refused[:-1], take_sync(Loader(path, memory_limit=refused[-1], **options))
        except ConfigError as error:
            refused.append(error.needed)
    raise AssertionError(refused)
