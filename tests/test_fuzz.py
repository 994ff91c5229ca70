"""Any bytes for a set and any dict for a state: right data or an error of ours, soon and in little memory.

Damage comes in two kinds. Bytes that were changed by chance are caught by sums, so what is read must be
right. Bytes that somebody has made up carry valid sums; what they say may then be anything, and only that it
is handled in bounded time and memory is promised.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401 - which would otherwise be imported, and counted, at the first batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aioload
from aioload import AioloadError, Dataset, Loader, NotFoundError
from aioload.shard.check import verify
from aioload.shard.format import (
    INDEX_HEADER,
    INDEX_NAME,
    MANIFEST_NAME,
    SHARD_HEADER,
    SHARD_TRAILER,
    crc32c,
    shard_name,
)
from aioload.shard.manifest import Manifest
from aioload.shard.rebuild import rebuild
from aioload.storage import MemoryStorage

RECORDS = 7
SECONDS = 5.0
BYTES = 200 << 20

Files = dict[str, bytes]

# examples here open whole sets: a share of the profile's
quick = settings(
    max_examples=settings.default.max_examples * 3 // 10,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a set with all that a set can have: several shards, columns, metadata, keys."""
    folder = tmp_path_factory.mktemp("fuzz") / "set"
    fields = {"array": "ndarray", "n": "int", "text": "str"}
    metadata = {"classes": ["a", "ä"], "deep": [[[[1.5, None, True]]]]}
    with aioload.Writer(folder, fields, shard_bytes=700, index_fields=["n"], metadata=metadata) as writer:
        for record in range(RECORDS):
            array = np.full((record, 3), record, np.uint8)
            writer.write({"array": array, "n": record, "text": "x" * record}, key=f"k{record}")
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


class MemoryDataset(Dataset):
    """A data set over files in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(MemoryStorage(files))


class MemoryReader:
    """The same for `verify` and `rebuild`."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def size(self, name: str) -> int:
        if name not in self.files:
            raise NotFoundError(f"no file {name}")
        return len(self.files[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        if name not in self.files:
            raise NotFoundError(f"no file {name}")
        return self.files[name][start:stop]


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where more than 5 s or 200 MB were needed."""
    tracemalloc.start(1)
    began = time.perf_counter()
    try:
        yield
        seconds, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < SECONDS
    assert peak < BYTES


def outcome(use: Callable[[], Any]) -> Any:
    """Return what a call gives, or an error of ours; any other is raised, as is too much time or memory."""
    with bounded():
        try:
            return use()
        except AioloadError as error:
            return error


def read_all(files: Files) -> list[Any]:
    """Open a set and read each record by itself, errors in their places."""
    dataset = MemoryDataset(files)
    return [outcome(lambda record=record: plain(dataset[record])) for record in range(min(len(dataset), 10))]


def load_all(files: Files) -> list[Any]:
    """Load an epoch, leaving out what cannot be read."""
    options = {"batch_size": 3, "collate": list, "on_error": aioload.Skip(limit=100), "memory_limit": "4MiB"}
    with Loader(MemoryDataset(files), num_workers=0, **options).sync() as loader:
        return [plain(sample) for batch in loader for sample in batch]


def plain(sample: dict[str, Any]) -> tuple[Any, ...]:
    """Make a sample comparable."""
    return np.asarray(sample["array"]).tolist(), int(sample["n"]), sample["text"]


EXPECTED = [([[record] * 3] * record, record, "x" * record) for record in range(RECORDS)]

numbers = st.sampled_from([0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1])
huge = numbers | st.sampled_from([-1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30, 10**400]) | st.integers()
words = st.sampled_from([0, 1, 4, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
anything = st.recursive(
    huge
    | st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["n", "int", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw what is done to some bytes: bits flipped, pieces cut out, swapped, put in or made zero."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["flip", "cut", "end", "insert", "swap", "zero", "double"]),
                st.floats(0, 1, exclude_max=True),
                st.floats(0, 1, exclude_max=True),
                st.binary(min_size=1, max_size=20),
            ),
            min_size=1,
            max_size=3,
        )
    )

    def damage(data: bytes) -> bytes:
        for kind, first, second, extra in steps:
            data = _damage(data, kind, int(first * len(data)), int(second * len(data)), extra)
        return data

    return damage


def _damage(data: bytes, kind: str, at: int, other: int, extra: bytes) -> bytes:
    low, high = sorted((at, other))
    match kind:
        case "flip" if data:
            return data[:at] + bytes([data[at] ^ (1 << extra[0] % 8)]) + data[at + 1 :]
        case "cut":
            return data[:low] + data[high:]
        case "end":
            return data[:at]
        case "insert":
            return data[:at] + extra + data[at:]
        case "swap":
            size = min(len(extra), high - low)
            return (
                data[:low]
                + data[high : high + size]
                + data[low + size : high]
                + data[low : low + size]
                + data[high + size :]
            )
        case "zero":
            return data[:low] + bytes(high - low) + data[high:]
        case "double":
            return data[:high] + data[low:high] + data[high:]
    return data


# Damage by chance -------------------------------------------------------------------------------------


@quick
@given(name=st.integers(0, 10), damage=damages())
def test_damaged_bytes_are_right_or_an_error(
    files: Files, name: int, damage: Callable[[bytes], bytes]
) -> None:
    """Whatever happens to any file of a set: each record is right or an error; nothing else, ever."""
    chosen = sorted(files)[name % len(files)]
    damaged = {**files, chosen: damage(files[chosen])}

    found = outcome(lambda: read_all(damaged))

    pairs = [] if isinstance(found, AioloadError) else zip(found, EXPECTED, strict=True)
    assert all(isinstance(one, AioloadError) or one == expected for one, expected in pairs)


@settings(quick, max_examples=settings.default.max_examples // 4)
@given(number=st.integers(0, 10), damage=damages())
def test_damaged_bytes_are_left_out_by_a_loader(
    files: Files, number: int, damage: Callable[[bytes], bytes]
) -> None:
    """A loader told to skip gives the other records, right and in order, or one error."""
    shards = sorted(set(files) - {MANIFEST_NAME, INDEX_NAME})
    chosen = shards[number % len(shards)]
    damaged = {**files, chosen: damage(files[chosen])}

    found = outcome(lambda: load_all(damaged))

    assert isinstance(found, AioloadError) or [one for one in EXPECTED if one in found] == found


@quick
@given(name=st.integers(0, 10), damage=damages())
def test_damage_is_told_by_verify(files: Files, name: int, damage: Callable[[bytes], bytes]) -> None:
    """`verify` never raises for damaged data, and whatever differs is a problem in its report."""
    chosen = sorted(files)[name % len(files)]
    damaged = {**files, chosen: damage(files[chosen])}

    report = outcome(lambda: verify(MemoryReader(damaged)))

    assert report.ok == (damaged == files)


@quick
@given(name=st.integers(0, 10), damage=damages())
def test_damage_is_not_rebuilt_into_other_data(
    files: Files, name: int, damage: Callable[[bytes], bytes]
) -> None:
    """`rebuild` from damaged shards is an error, or gives back the manifest and index there were."""
    shards = sorted(set(files) - {MANIFEST_NAME, INDEX_NAME})
    chosen = shards[name % len(shards)]
    damaged = {**files, chosen: damage(files[chosen])}

    found = outcome(lambda: rebuild(MemoryReader(damaged)))

    assert isinstance(found, AioloadError) or (found[0].render(), found[1]) == (
        files[MANIFEST_NAME],
        files[INDEX_NAME],
    )


# Made up, with valid sums -----------------------------------------------------------------------------


def sealed(members: Mapping[str, Any]) -> bytes:
    """Render a manifest of any members with a valid sum."""
    body = "{\n" + "".join(f'  "{name}": {json.dumps(value)},\n' for name, value in members.items())
    unsigned = body.encode() + b'  "crc32c": "00000000"\n}\n'
    return unsigned.replace(b'"crc32c": "00000000"\n}\n', b'"crc32c": "%08x"\n}\n' % crc32c(unsigned))


def members_of(files: Files) -> dict[str, Any]:
    """The members of a manifest, without its own sum."""
    members = json.loads(files[MANIFEST_NAME])
    del members["crc32c"]
    return members


def with_index(files: Files, index: bytes, **changes: Any) -> Files:
    """Put another index into a set, sealed, and members of the manifest with it."""
    members = members_of(files)
    members["index"] = {"name": INDEX_NAME, "bytes": len(index), "crc32c": f"{crc32c(index):08x}"}
    return {**files, INDEX_NAME: index, MANIFEST_NAME: sealed({**members, **changes})}


def use_all(files: Files) -> None:
    """Use a set in every way; each must end as it should."""
    outcome(lambda: read_all(files))
    outcome(lambda: load_all(files))
    outcome(lambda: rebuild(MemoryReader(files)))
    report = outcome(lambda: verify(MemoryReader(files)))
    assert not isinstance(report, AioloadError)


def test_the_seal_is_the_writer_s(files: Files) -> None:
    """The tests below seal as the writer does, so that what they make up is believed."""
    resealed = with_index(files, files[INDEX_NAME])

    assert verify(MemoryReader(resealed)).ok
    assert read_all(resealed) == EXPECTED


@quick
@given(changes=st.dictionaries(st.integers(0, 30), anything, min_size=1, max_size=3), where=st.booleans())
def test_made_up_manifests(files: Files, changes: dict[int, Any], where: bool) -> None:
    """Members that say anything at all, under a valid sum."""
    members = members_of(files)
    names = sorted(members)
    for number, value in changes.items():
        target, keys = (members["index"], ["bytes", "crc32c", "name"]) if where else (members, names)
        target[keys[number % len(keys)]] = value
        if not isinstance(members.get("index"), dict):
            break

    use_all({**files, MANIFEST_NAME: sealed(members)})


@pytest.mark.parametrize("shards", [2**20, 2**40, 2**63 - 1])
@pytest.mark.parametrize("records", [RECORDS, 2**40, 2**63 - 1])
def test_absurd_counts_in_a_manifest(files: Files, shards: int, records: int) -> None:
    """Billions of shards and records that are not there cost nothing."""
    made_up = {**files, MANIFEST_NAME: sealed({**members_of(files), "shards": shards, "records": records})}

    use_all(made_up)


def test_deep_metadata(files: Files) -> None:
    """Metadata nested as deep as JSON lets it is read, or refused as ours."""
    for depth in (100, 500, 900, 2000, 100_000):
        deep = b"[" * depth + b"]" * depth
        unsigned = sealed({**members_of(files), "metadata": "DEEP"}).replace(b'"DEEP"', deep)
        unsigned = unsigned[: unsigned.rindex(b'  "crc32c"')] + b'  "crc32c": "00000000"\n}\n'
        use_all({**files, MANIFEST_NAME: unsigned.replace(b"00000000", b"%08x" % crc32c(unsigned))})


@quick
@given(places=st.dictionaries(st.floats(0, 1, exclude_max=True), words, min_size=1, max_size=4))
def test_made_up_indexes(files: Files, places: dict[float, int]) -> None:
    """Any words in the tables of the index, under valid sums."""
    index = bytearray(files[INDEX_NAME])
    slots = (len(index) - INDEX_HEADER.size) // 8
    for share, word in places.items():
        struct.pack_into("<Q", index, INDEX_HEADER.size + 8 * int(share * slots), word)

    use_all(with_index(files, bytes(index)))


@quick
@given(records=words, shards=words, columns=st.integers(0, 2**32 - 1), tail=st.binary(max_size=64))
def test_made_up_index_headers(files: Files, records: int, shards: int, columns: int, tail: bytes) -> None:
    """Any counts in the index's header, and the same in the manifest."""
    counts = {"records": records, "shards": shards, "columns": columns}
    header = INDEX_HEADER.pack(version=1, fields=3, **counts)
    index = header + files[INDEX_NAME][INDEX_HEADER.size :] + tail

    use_all(with_index(files, index, records=records, shards=shards))


def test_a_record_of_three_gigabytes_in_a_small_file(files: Files) -> None:
    """An index that gives a record 3 GiB, consistent in itself, is refused when the file turns out small."""
    index = bytearray(files[INDEX_NAME])
    manifest = Manifest.parse(files[MANIFEST_NAME], MANIFEST_NAME)
    shards, records = manifest.shards, manifest.records
    grown = 3 << 30
    starts = INDEX_HEADER.size + 8 * (shards + 1)
    positions = starts + 8 * (3 * shards + 1)
    for at in (starts + 8 * shards, positions + 8 * records, positions - 8):
        struct.pack_into("<Q", index, at, struct.unpack_from("<Q", index, at)[0] + grown - 100)

    made_up = with_index(files, bytes(index), data_bytes=manifest.data_bytes + grown - 100)
    last = read_all(made_up)[-1]

    assert isinstance(last, aioload.ShardError)
    assert "was cut short" in str(last)
    use_all(made_up)


@quick
@given(
    start=words,
    records=words,
    description=st.integers(0, 2**32 - 1),
    damage=damages() | st.none(),
    text=anything | st.none(),
)
def test_made_up_footers(
    files: Files, start: int, records: int, description: int, damage: Any, text: Any
) -> None:
    """A shard's footer and trailer that say anything, under valid sums, with and without a manifest."""
    name = shard_name(0)
    data = files[name]
    trailer = SHARD_TRAILER.unpack(data[-SHARD_TRAILER.size :], name)
    footer = data[trailer["footer_start"] : -SHARD_TRAILER.size]
    values = {**trailer, "footer_start": start, "records": records, "description_bytes": description}
    if damage is not None:
        footer, values = damage(footer), trailer
    elif text is not None:
        described = json.dumps(text).encode()
        footer = footer[: -trailer["description_bytes"]] + described
        values = {**trailer, "description_bytes": len(described)}
    sums = {"footer_crc32c": crc32c(footer)}
    members = {key: value for key, value in values.items() if key not in ("magic", "footer_crc32c")}
    made_up = data[: trailer["footer_start"]] + footer + SHARD_TRAILER.pack(**members, **sums)

    use_all({**files, name: made_up})
    use_all({name: made_up})


@quick
@given(number=words, fields=st.integers(0, 2**32 - 1))
def test_made_up_shard_headers(files: Files, number: int, fields: int) -> None:
    """A shard's header that says anything, under a valid sum."""
    name = shard_name(0)
    header = SHARD_HEADER.pack(version=1, shard=number % 2**32, fields=fields)

    use_all({**files, name: header + files[name][SHARD_HEADER.size :]})


@quick
@given(
    ends=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
    record=st.integers(0, RECORDS - 1),
    body=st.binary(),
)
def test_made_up_records(files: Files, ends: list[int], record: int, body: bytes) -> None:
    """A record whose lengths say anything, under a valid sum: ours, and the other records are right."""
    located = MemoryDataset(files).index.locate(np.array([record]))
    start, stop = int(located.start[0]), int(located.stop[0])
    name = shard_name(int(located.shard[0]))
    content = struct.pack("<4I", *ends) + body
    content = content[: stop - start].ljust(stop - start, b"\0")
    index = bytearray(files[INDEX_NAME])
    sums = len(index) - 4 * (RECORDS + RECORDS % 2)
    struct.pack_into("<I", index, sums + 4 * record, crc32c(content))
    made_up = with_index(files, bytes(index))
    made_up[name] = files[name][:start] + content + files[name][stop:]

    found = read_all(made_up)

    assert found[:record] + found[record + 1 :] == EXPECTED[:record] + EXPECTED[record + 1 :]
    use_all(made_up)


# States -----------------------------------------------------------------------------------------------


def take(files: Files, state: Any, *, adopt: bool, shuffle: Any) -> list[int]:
    """Load a state and take the rest of its epoch."""
    dataset = MemoryDataset(files)
    options = {"batch_size": 2, "num_workers": 0, "collate": list, "memory_limit": "4MiB", "shuffle": shuffle}
    loader = Loader(dataset, **options)
    with loader.sync() as batches:
        loader.load_state_dict(state, adopt=adopt)
        return [int(sample["n"]) for batch in batches for sample in batch]


@quick
@given(
    changes=st.dictionaries(st.integers(0, 20), anything | st.sampled_from(["block", "full"]), max_size=3),
    extra=st.dictionaries(st.text(max_size=3) | st.integers(), anything, max_size=1),
    adopt=st.booleans(),
    shuffle=st.sampled_from([False, "block", "full"]),
)
def test_any_dict_as_a_state(
    files: Files, changes: dict[int, Any], extra: dict[Any, Any], adopt: bool, shuffle: Any
) -> None:
    """A state that says anything is a ConfigError, or the rest of an epoch comes, each record once."""
    loader = Loader(MemoryDataset(files), batch_size=2, num_workers=0, shuffle=shuffle)
    state = loader.state_dict()
    names = sorted(state)
    state |= {names[number % len(names)]: value for number, value in changes.items()}

    found = outcome(lambda: take(files, {**state, **extra}, adopt=adopt, shuffle=shuffle))

    left = RECORDS - state["position"] if isinstance(found, list) else 0
    assert isinstance(found, AioloadError) or (len(set(found)), len(found)) == (left, left)


@pytest.mark.parametrize("state", [None, 5, "state", [], [("version", 1)], {}, {"version": 1}])
def test_what_is_no_dict_is_no_state(files: Files, state: Any) -> None:
    """Anything but a state is a ConfigError that says so."""
    loader = Loader(MemoryDataset(files), batch_size=2, num_workers=0)

    with pytest.raises(aioload.ConfigError, match="state"):
        loader.load_state_dict(state)
