"""A set is mapped once: the same bytes by any number of hands, gone on with after a kill, and never mixed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
from batches import Warnings
from commands import aio, told
from conftest import TinySet
from PIL import Image
from shard.tars import by_tarfile

import aioload
from aioload import Concat, ConfigError, Dataset, Mix, SampleError, WorkerError, Writer, decode
from aioload.packing import PackReport
from aioload.packing.provenance import MEMBERS, PROVENANCE
from aioload.shard.folder import WORK_NAME

FORMAT = (Path(__file__).parent.parent / "FORMAT.md").read_text()
RECORDS = 40

SCRIPT = """
    import os, signal, sys
    import aioload

    def triple(sample):
        return {"triple": sample["x"] * 3, "n": sample["n"]}

    def progress(records, num_bytes):
        print("shard", flush=True)
        if sys.argv[3] == "stop":
            os.kill(os.getpid(), signal.SIGKILL)

    report = aioload.map(
        sys.argv[1], triple, sys.argv[2], num_workers=2, shard_bytes=2000, progress=progress
    )
    print(*report.notes)
"""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of arrays that differ in size, with numbers and keys."""
    path = tmp_path_factory.mktemp("numbers") / "set"
    with Writer(path, {"x": "ndarray", "n": "int"}, metadata={"classes": ["a"]}, shard_bytes=3000) as writer:
        for number in range(RECORDS):
            writer.write({"x": np.arange(10 + number % 7), "n": number}, key=f"key-{number}")
    return path


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Stand for costly work."""
    return {"double": sample["x"] * 2, "n": sample["n"]}


def mapped(
    source: Any, function: Callable[..., Any], path: Path, **options: Any
) -> tuple[PackReport, Dataset]:
    """Map in this process, into small shards; return what it says, and the set."""
    options = {"num_workers": 0, "shard_bytes": 2000, **options}
    report = aioload.map(source, function, path, **options)
    return report, Dataset(path)


def files(path: Path) -> dict[str, bytes]:
    """Return what lies in a folder."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


# what comes of it


def test_results_keys_and_order_are_kept(numbers: Path, tmp_path: Path) -> None:
    """Each record becomes what the function made of it, in its place and under its key."""
    report, dataset = mapped(numbers, doubled, tmp_path / "out")

    samples = [dataset[number] for number in range(RECORDS)]
    assert dataset.fields == {"double": "ndarray", "n": "int"}
    assert [sample["n"] for sample in samples] == list(range(RECORDS))
    assert [sample["__key__"] for sample in samples] == [f"key-{number}" for number in range(RECORDS)]
    assert all((sample["double"] == np.arange(10 + sample["n"] % 7) * 2).all() for sample in samples)
    assert (report.records, report.unreadable, report.notes) == (RECORDS, (), ())
    assert report.shards == len(dataset.index.shards) > 3
    assert aio("verify", tmp_path / "out").exit_code == 0
    assert set(files(tmp_path / "out")) == {"manifest.json", "index.aioi", *dataset.index.shards}


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_processes_makes_the_same_bytes(numbers: Path, tmp_path: Path, workers: int) -> None:
    """Also a function of the test itself, which travels by value."""
    factor = 2

    def closure(sample: dict[str, Any]) -> dict[str, Any]:
        return {"double": sample["x"] * factor, "n": sample["n"]}

    mapped(numbers, closure, tmp_path / "one")
    mapped(numbers, closure, tmp_path / "many", num_workers=workers)

    assert files(tmp_path / "many") == files(tmp_path / "one")


def test_kinds_are_told_from_the_first_result(numbers: Path, tmp_path: Path) -> None:
    """Arrays, pictures, tensors, numbers, texts, bytes, and what JSON can say."""
    torch = pytest.importorskip("torch")
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    def all_kinds(sample: dict[str, Any]) -> dict[str, Any]:
        return {
            "array": pixels, "picture": Image.fromarray(pixels), "tensor": torch.ones(2),
            "whole": np.int32(7), "broken": np.float32(0.5), "truth": True, "text": "ü",
            "data": memoryview(b"raw"), "tree": {"a": [1, None]},
        }  # fmt: skip

    _, dataset = mapped(numbers, all_kinds, tmp_path / "out")

    sample = dataset[3]
    assert list(dataset.fields.values()) == [
        "ndarray", "ndarray", "ndarray", "int", "float", "int", "str", "bytes", "json",
    ]  # fmt: skip
    assert (sample["picture"] == pixels).all()
    assert sample["tensor"].dtype == np.float32
    assert (sample["whole"], sample["broken"], sample["truth"]) == (7, 0.5, 1)
    assert (sample["text"], bytes(sample["data"]), sample["tree"]) == ("ü", b"raw", {"a": [1, None]})


def test_a_function_that_draws_is_told_once(numbers: Path, tmp_path: Path) -> None:
    """What is random belongs into the transform: packed, it would be the same in every epoch."""
    with Warnings() as warned:
        mapped(numbers, lambda sample: {"x": sample["x"] + np.random.rand()}, tmp_path / "drawn")
        mapped(numbers, doubled, tmp_path / "doubled")

    [message] = warned.messages
    assert message.startswith("the function draws random numbers (from numpy.random)")


def test_what_others_draw_meanwhile_is_not_the_functions(numbers: Path, tmp_path: Path) -> None:
    """A generator that another thread draws from once is not blamed on the function."""
    drawn: list[float] = []

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        if not drawn:  # in another's stead
            drawn.append(np.random.rand())
        return {"x": sample["x"]}

    with Warnings() as warned:
        mapped(numbers, prepare, tmp_path / "quiet")

    assert warned.messages == []


def test_pixels_of_an_image_field_become_a_file(numbers: Path, tmp_path: Path) -> None:
    """`fields` decides; a PNG file loses nothing."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)

    _, dataset = mapped(
        numbers, lambda sample: {"image": pixels}, tmp_path / "out", fields={"image": "image"}
    )

    assert dataset.fields == {"image": "image"}
    assert (dataset[0]["image"] == pixels).all()


def test_the_users_decoders_are_taken(tiny_set: TinySet, tmp_path: Path) -> None:
    """A field can be handed on as its bytes, or decoded to another size."""

    def passed(sample: dict[str, Any]) -> Mapping[str, Any]:
        sample["image"][0] = 0  # what was decoded is the function's own
        return {"small": sample["image"], "name": sample["name"]}

    _, dataset = mapped(
        tiny_set.path, passed, tmp_path / "out", decode={"image": decode.Image(size=(4, 4)), "name": "raw"}
    )

    assert dataset.fields == {"small": "ndarray", "name": "bytes"}
    assert dataset[1]["small"].shape == (4, 4, 3)
    assert bytes(dataset[1]["name"]).decode() == tiny_set.names[1]


def test_keys_may_be_chosen(numbers: Path, tmp_path: Path) -> None:
    """A key that the function returns is the record's."""
    _, dataset = mapped(numbers, lambda sample: {"n": 1, "__key__": f"my-{sample['n']}"}, tmp_path / "out")

    assert dataset[4]["__key__"] == "my-4"


def test_parts_and_several_sets_can_be_mapped(numbers: Path, tmp_path: Path) -> None:
    """A selection in wild order, and sets end to end, come in their order."""
    dataset = Dataset(numbers)
    picked = Concat([dataset.select([7, 3, 4, 39]), dataset.select(range(10, 12))])

    _, found = mapped(picked, doubled, tmp_path / "out")

    assert [found[number]["n"] for number in range(6)] == [7, 3, 4, 39, 10, 11]


# provenance


def test_a_set_says_what_it_was_made_of(numbers: Path, tmp_path: Path) -> None:
    """The manifest keeps the source's metadata, and source and function of this run and of earlier ones."""
    _, first = mapped(numbers, doubled, tmp_path / "first")
    _, second = mapped(tmp_path / "first", lambda sample: {"n": sample["n"]}, tmp_path / "second")

    assert second.metadata["classes"] == ["a"]
    made_of = second.metadata[PROVENANCE]
    assert made_of["fingerprint"] == first.index.fingerprint()
    assert made_of["source"] == str(tmp_path / "first")
    assert made_of["before"]["function"].endswith(":doubled")
    assert made_of["before"]["identity"] != made_of["identity"]
    assert (made_of["certain"], made_of["aioload"]) == (True, aioload.__version__)


def test_the_page_names_all_of_the_provenance() -> None:
    """FORMAT.md and the code have the same members, in the same order."""
    section = FORMAT.split("### 5.1 ")[1].split("\n## ")[0]

    assert f"`{PROVENANCE}`" in section
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == (*MEMBERS, "before")


# what is stopped is gone on with


def test_a_killed_run_goes_on(numbers: Path, tmp_path: Path) -> None:
    """After SIGKILL there is no set; the next run keeps the shards that are right, and ends the same."""
    scripts.run(SCRIPT, numbers, tmp_path / "whole", "go", folder=tmp_path)
    killed = scripts.run(SCRIPT, numbers, tmp_path / "out", "stop", folder=tmp_path)
    left = files(tmp_path / "out")

    again = scripts.run(SCRIPT, numbers, tmp_path / "out", "go", folder=tmp_path)

    assert killed.status == -signal.SIGKILL
    assert WORK_NAME in left
    assert "manifest.json" not in left
    assert re.search(r"[1-9]\d* of \d+ shards were there already", again.out)
    assert (again.status, again.err) == (0, "")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


class Stopped(Exception):
    """What stops a run of a test."""


def stopped_run(source: Any, function: Callable[..., Any], path: Path, **options: Any) -> None:
    """Leave some shards of a run behind."""
    shards = iter(range(3))

    def progress(records: int, num_bytes: int) -> None:
        if next(shards) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        mapped(source, function, path, progress=progress, **options)


def test_a_damaged_shard_is_made_again(numbers: Path, tmp_path: Path) -> None:
    """A flipped bit in a shard of an earlier run is found; a half-written file goes."""
    mapped(numbers, doubled, tmp_path / "whole")
    stopped_run(numbers, doubled, tmp_path / "out")
    damaged = tmp_path / "out" / "shard-00001.aio"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    (tmp_path / "out" / "shard-00002.aio.0123abcd.tmp").write_bytes(b"half")

    report, _ = mapped(numbers, doubled, tmp_path / "out")

    assert report.notes[0].startswith("2 of ")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({"function": lambda sample: {"double": sample["x"] * 3, "n": 0}}, "function"),
        ({"source": "other"}, "source"),
        ({"shard_bytes": 3000}, "shard size"),
        ({"index_fields": ["n"]}, "index fields"),
        ({"decode": {"x": "raw"}}, "decoders"),
        ({"fields": {"double": "ndarray", "n": "int"}}, "fields"),
        ({"skip_bad": True}, "way with bad records"),
    ],
)
def test_what_another_run_left_is_not_mixed_in(
    numbers: Path, tmp_path: Path, options: dict[str, Any], differs: str
) -> None:
    """Shards of another function, source or options are an error that says so; `force` begins anew."""
    stopped_run(numbers, doubled, tmp_path / "out")
    if "source" in options:
        options = {"source": Dataset(numbers).select(range(20))}
    given = {"source": numbers, "function": doubled, **options}
    before = files(tmp_path / "out")

    with pytest.raises(ConfigError, match=f"with another {differs}; .*force"):
        mapped(path=tmp_path / "out", **given)

    assert files(tmp_path / "out") == before
    mapped(path=tmp_path / "out", force=True, **given)
    mapped(path=tmp_path / "fresh", **given)
    assert files(tmp_path / "out") == files(tmp_path / "fresh")


def test_a_writer_clears_what_a_run_left(numbers: Path, tmp_path: Path) -> None:
    """A folder without a manifest is no set, whoever began one there."""
    stopped_run(numbers, doubled, tmp_path / "out")

    with Writer(tmp_path / "out", {"n": "int"}) as writer:
        writer.write({"n": 1})

    assert sorted(files(tmp_path / "out")) == ["index.aioi", "manifest.json", "shard-00000.aio"]


def test_a_maker_that_was_given_up_changes_nothing(numbers: Path, tmp_path: Path) -> None:
    """A process of an earlier run that still works when another begins there cannot place its shard."""
    out = tmp_path / "out"

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 20:  # meanwhile, another run takes the folder
            (out / WORK_NAME).write_text(json.dumps({"run": "another"}))
        return doubled(sample)

    with pytest.raises(ConfigError, match="belongs to another run by now"):
        mapped(numbers, slow, out)

    assert not any("tmp" in name for name in files(out))


# what goes wrong


def fails_at(*numbers: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that fails at some records."""

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] in numbers:
            raise KeyError(f"no {sample['n']}")
        return doubled(sample)

    return fail


def test_a_record_that_fails_is_named(numbers: Path, tmp_path: Path) -> None:
    """With its number, key, error and traceback; what was made stays for the next run."""
    with pytest.raises(SampleError, match=r"record 21 of .*\(key-21\): KeyError: 'no 21'") as caught:
        mapped(numbers, fails_at(21), tmp_path / "out")

    assert "in fail" in str(caught.value.cause)
    assert len(caught.value.unreadable) == 1
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / "out" / "shard-00000.aio").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_that_exits_is_a_bad_record(numbers: Path, tmp_path: Path, workers: int) -> None:
    """`sys.exit` in it ends neither the run without a word, nor a worker."""

    def leave(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 21:
            sys.exit(4)
        return doubled(sample)

    with pytest.raises(SampleError, match=r"record 21 of .*\(key-21\): SystemExit: 4"):
        mapped(numbers, leave, tmp_path / "out", num_workers=workers)


@pytest.mark.parametrize("bad", [(0, 5, 21, 39), tuple(range(9))])
def test_bad_records_can_be_left_out(numbers: Path, tmp_path: Path, bad: tuple[int, ...]) -> None:
    """Also after a stop, all that were left out are told of; the first good result tells the fields."""
    stopped_run(numbers, fails_at(*bad), tmp_path / "out", skip_bad=True)

    report, dataset = mapped(numbers, fails_at(*bad), tmp_path / "out", skip_bad=True)

    rest = [number for number in range(RECORDS) if number not in bad]
    assert [dataset[place]["n"] for place in range(len(dataset))] == rest
    assert len(report.unreadable) == len(bad)
    assert report.records == len(rest)
    assert set(files(tmp_path / "out")) == {"manifest.json", "index.aioi", *dataset.index.shards}


@pytest.mark.parametrize("workers", [0, 1])
def test_missing_shards_of_others_can_be_left_out(tmp_path: Path, workers: int) -> None:
    """What is there is mapped; what is not counts as one bad record."""
    pairs = [(f"{number:02}.cls", b"%d" % number) for number in range(9)]
    (tmp_path / "x-0.tar").write_bytes(by_tarfile(pairs))

    report, dataset = mapped(
        str(tmp_path / "x-{0..1}.tar"), lambda sample: {"n": sample["cls"]}, tmp_path / "out",
        skip_bad=True, num_workers=workers,
    )  # fmt: skip

    assert [dataset[number]["n"] for number in range(len(dataset))] == list(range(9))
    assert len(report.unreadable) == 1


def test_nothing_left_is_an_error(numbers: Path, tmp_path: Path) -> None:
    """A function that fails everywhere makes no set, and no folder."""
    with pytest.raises(SampleError, match="cannot be packed"):
        mapped(numbers, fails_at(*range(RECORDS)), tmp_path / "out", skip_bad=True)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda sample: None, "returned NoneType, not a dict"),
        (lambda sample: {"x": object()}, "is a object, which no kind of field keeps"),
        (lambda sample: {"x": 0.5 if sample["n"] else 1}, "takes a whole number"),
        (lambda sample: {"x": 1} if sample["n"] else {"y": 1}, "each needs a value"),
        (lambda sample: {"x": {"samples": sample["x"]}}, "JSON can say"),
        (lambda sample: {}, "1 to 1024 fields"),
        (lambda sample: {"x": 1, "__key__": 5}, "a key is text"),
    ],
)
def test_results_that_cannot_be_kept_are_errors(
    numbers: Path, tmp_path: Path, result: Callable[..., Any], message: str
) -> None:
    """A result of another make than the first, or of none that a set has."""
    with pytest.raises(SampleError) as caught:
        mapped(numbers, result, tmp_path / "out")

    assert message in str(caught.value)


def test_options_that_cannot_work_are_told_at_once(numbers: Path, tiny_set: TinySet, tmp_path: Path) -> None:
    """Before anything is written."""
    dataset = Dataset(numbers)
    lock = threading.Lock()
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        (Mix([(dataset, 1.0)]), doubled, {}, "mix"),
        (numbers, lambda sample, rng: sample, {}, "rng"),
        (numbers, lambda: {}, {}, "must take a sample"),
        (numbers, doubled, {"decode": {"nothing": "raw"}}, "none of the fields"),
        (numbers, doubled, {"fields": {"double": "matrix"}}, "unknown kind"),
        (numbers, doubled, {"shard_bytes": 0}, "positive"),
        (numbers, doubled, {"num_workers": -1}, "negative"),
        (numbers, doubled, {"scheduler": "tcp://127.0.0.1:1", "num_workers": 2}, "leave num_workers out"),
        (numbers, lambda sample: {"x": lock}, {}, "cannot be sent"),
        (
            tiny_set.path,
            doubled,
            {"decode": {"image": decode.Image(crop="random_resized", size=(4, 4))}},
            "draws",
        ),
        (dataset.select([]), doubled, {}, "no records"),
    ]

    messages = []
    for source, function, options, _ in wrong:
        with pytest.raises(ConfigError) as caught:
            mapped(source, function, tmp_path / "out", **options)
        messages.append(str(caught.value))

    assert [part for message, (*_, part) in zip(messages, wrong, strict=True) if part not in message] == []
    assert not (tmp_path / "out").exists()


def test_a_set_is_never_written_over(numbers: Path, tmp_path: Path) -> None:
    """Not by force, either."""
    mapped(numbers, doubled, tmp_path / "out")

    with pytest.raises(ConfigError, match="holds a complete data set"):
        mapped(numbers, doubled, tmp_path / "out", force=True)


def test_a_killed_process_is_replaced(numbers: Path, tmp_path: Path) -> None:
    """What it had begun is done again, and the set is what it would have been."""
    once = tmp_path / "once"

    def dies_once(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 17 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return doubled(sample)

    _, dataset = mapped(numbers, dies_once, tmp_path / "out", num_workers=2)

    assert once.exists()
    assert [dataset[number]["n"] for number in range(RECORDS)] == list(range(RECORDS))


def test_a_record_that_kills_each_time_ends_the_run(numbers: Path, tmp_path: Path) -> None:
    """The error names the shard that was being made."""

    def dies(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 17:
            os._exit(3)
        return doubled(sample)

    with pytest.raises(WorkerError, match=r"each of 3 times that shard \d+ \(records \d+ to \d+\)"):
        mapped(numbers, dies, tmp_path / "out", num_workers=1)


# the command

MODULE = """
import numpy as np

def prepare(sample):
    return {"sum": float(sample["x"].sum()), "n": sample["n"]}

class Deep:
    prepare = staticmethod(prepare)

LIMIT = 5
"""


def test_the_command_maps(numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the working directory, in two processes; the set can be read and says its function."""
    (tmp_path / "users_mels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    report = told("map", numbers, "out", "--with", "users_mels:prepare", "--workers", 2, "--index-field", "n")

    dataset = Dataset("out")
    assert report["records"] == RECORDS
    assert dataset.fields == {"sum": "float", "n": "int"}
    assert dataset.index.columns["n"].tolist() == list(range(RECORDS))
    assert dataset.metadata[PROVENANCE]["function"] == "users_mels:prepare"
    shown = aio("map", numbers, "again", "--with", "users_mels:Deep.prepare", "--workers", 0).output
    assert f"mapped {RECORDS} records with users_mels:Deep.prepare into again" in shown


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module_here:prepare", "cannot be imported"),
        ("users_mels:nothing", "has no nothing"),
        ("users_mels:LIMIT", "is no function"),
        ("users_mels", "MODULE:FUNCTION"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_function(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    """A usage error, before anything is read."""
    (tmp_path / "users_mels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    result = aio("map", numbers, "out", "--with", function, status=2)

    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_command_names_bad_records(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 1 and the record; with --skip-bad the rest is packed."""
    (tmp_path / "users_bad.py").write_text("def bad(sample):\n    return {'n': 1 // sample['n']}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    common = ("map", numbers, "out", "--with", "users_bad:bad", "--workers", 0)

    failed = told(*common, status=1)
    skipped = told(*common, "--skip-bad")

    assert "ZeroDivisionError" in failed["unreadable"][0]["reason"]
    assert (skipped["records"], len(skipped["unreadable"])) == (RECORDS - 1, 1)
