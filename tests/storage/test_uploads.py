"""A set packed into a bucket is the set packed into a folder, is whole or none, and is not sent twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from conftest import png
from obstore.store import S3Store
from servers.seaweed import Seaweed
from typer.testing import CliRunner

from aioload.cli._app import app
from aioload.errors import ConfigError, NotFoundError, SampleError, StorageError
from aioload.shard.writer import Writer
from aioload.storage.address import Address
from aioload.storage.options import NetworkOptions
from aioload.storage.stores import make_store
from aioload.storage.uploads import BucketFolder

ROOT = Path(__file__).parents[2]
FIELDS = {"data": "bytes", "label": "int"}
FILES = ["index.aioi", "manifest.json", *(f"shard-{number:05}.aio" for number in range(4))]


class Bucket:
    """A folder in the server's bucket, looked at past everything under test."""

    def __init__(self, server: Seaweed, folder: str) -> None:
        self.url = f"s3://{server.bucket}/{folder}"
        self.options = server.options
        self._folder = folder
        address = Address.parse(f"s3://{server.bucket}")
        store = make_store(address, NetworkOptions.parse(server.options))
        assert isinstance(store, S3Store)
        self._store = store

    def names(self) -> list[str]:
        """The files, sorted."""
        found = obstore.list(self._store, self._folder).collect()
        return sorted(file["path"].removeprefix(f"{self._folder}/") for file in found)

    def files(self) -> dict[str, bytes]:
        """The files and what they hold."""
        return {name: self.read(name) for name in self.names()}

    def read(self, name: str) -> bytes:
        """What one file holds."""
        return bytes(obstore.get(self._store, f"{self._folder}/{name}").bytes())

    def tag(self, name: str) -> str | None:
        """The tag of a file."""
        return obstore.head(self._store, f"{self._folder}/{name}")["e_tag"]

    def put(self, name: str, data: bytes) -> None:
        """Store a file."""
        obstore.put(self._store, f"{self._folder}/{name}", data, use_multipart=False)


@pytest.fixture
def bucket(seaweed: Seaweed, request: pytest.FixtureRequest) -> Bucket:
    """A folder of the test's own, empty."""
    return Bucket(seaweed, request.node.name.replace("[", "-").replace("]", ""))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are sent, as it happens."""
    names: list[str] = []
    upload = BucketFolder._upload

    def noted(self: BucketFolder, name: str) -> Any:
        names.append(name)
        return upload(self, name)

    monkeypatch.setattr(BucketFolder, "_upload", noted)
    return names


def samples(count: int = 40) -> Iterator[dict[str, Any]]:
    """Some records, always the same; forty make four shards of 5,000 bytes."""
    for number in range(count):
        yield {"data": bytes([number]) * 400, "label": number}


def write_all(path: str | Path, many: Iterable[dict[str, Any]], options: dict[str, str] | None) -> None:
    """Write a set of small shards."""
    with Writer(path, FIELDS, shard_bytes=5000, storage_options=options) as writer:
        for sample in many:
            writer.write(sample)


def pack(path: str | Path, options: dict[str, str] | None = None) -> None:
    """Write the set that all tests write."""
    write_all(path, samples(), options)


def packed(folder: Path) -> dict[str, bytes]:
    """Write the same set to a folder, and return its files."""
    pack(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bucket_holds_what_a_folder_would(bucket: Bucket, tmp_path: Path) -> None:
    """Every file is the same to the byte."""
    pack(bucket.url, bucket.options)

    assert bucket.names() == FILES
    assert bucket.files() == packed(tmp_path / "set")


def test_a_large_shard_goes_out_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    """Records of all sizes, gathered or not, arrive whole and in order."""
    sizes = [3 << 20, 10, 9 << 20, 70_000, 5 << 20] * 2
    blocks = [bytes([number]) * size for number, size in enumerate(sizes)]
    for path, options in ((bucket.url, bucket.options), (tmp_path / "set", None)):
        with Writer(path, {"data": "bytes"}, storage_options=options) as writer:
            for block in blocks:
                writer.write({"data": block})

    assert bucket.read("shard-00000.aio") == (tmp_path / "set" / "shard-00000.aio").read_bytes()
    assert str(bucket.tag("shard-00000.aio")).endswith('-5"')
    assert (writer.shards, writer.records) == (1, 10)


def test_an_error_leaves_no_set_and_no_half_shard(bucket: Bucket) -> None:
    """What was whole stays for the next run; what was not is never seen."""
    many = [*samples(15), {"data": b"", "label": "the user's mistake"}]

    with pytest.raises(SampleError, match="label"):
        write_all(bucket.url, many, bucket.options)

    assert bucket.names() == ["shard-00000.aio"]


KILLED = """
import os, signal, sys
sys.path[:0] = ["tests", "tests/storage"]
import json
from aioload.shard.writer import Writer
from aioload.storage.uploads import BucketFolder
from test_uploads import FIELDS, samples

url, fatal, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
put = BucketFolder.put

def die(self, name, data):
    if name == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, name, data)

BucketFolder.put = die
with Writer(url, FIELDS, shard_bytes=5000, storage_options=options) as writer:
    for number, sample in enumerate(samples()):
        if fatal == str(number):
            os.kill(os.getpid(), signal.SIGKILL)
        writer.write(sample)
"""


@pytest.mark.parametrize(
    ("fatal", "there"),
    [("25", FILES[2:4]), ("index.aioi", FILES[2:]), ("manifest.json", [FILES[0], *FILES[2:]])],
)
def test_a_killed_run_leaves_no_manifest_and_the_next_sends_the_rest(
    bucket: Bucket, sent: list[str], tmp_path: Path, fatal: str, there: list[str]
) -> None:
    """Wherever it was killed: shards that are there and right are not sent again, and the set is whole."""
    command = [sys.executable, "-c", KILLED, bucket.url, fatal, json.dumps(bucket.options)]
    killed = subprocess.run(command, cwd=ROOT, check=False, timeout=60, capture_output=True)
    left = bucket.names()

    pack(bucket.url, bucket.options)

    assert killed.returncode == -9, killed.stderr
    assert left == there
    assert sent == [name for name in FILES[2:] if name not in there]
    assert bucket.files() == packed(tmp_path / "set")


@pytest.mark.parametrize("reads_back", [False, True])
def test_a_shard_that_is_not_right_is_sent_again(
    bucket: Bucket, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_back: bool
) -> None:
    """A flipped bit, a missing end: neither is taken for the shard, also where tags tell nothing."""
    right = packed(tmp_path / "set")
    flipped = bytearray(right[FILES[3]])
    flipped[2000] ^= 1
    bucket.put(FILES[2], right[FILES[2]])
    bucket.put(FILES[3], bytes(flipped))
    bucket.put(FILES[4], right[FILES[4]][:-1])
    if reads_back:
        monkeypatch.setattr("aioload.storage.uploads._s3_tag", lambda file, part_bytes: "unlike any")

    pack(bucket.url, bucket.options)

    assert sent == FILES[3:]
    assert bucket.files() == right


def test_what_the_new_set_does_not_have_is_gone_before_its_manifest(bucket: Bucket, tmp_path: Path) -> None:
    """A longer run that was stopped leaves nothing in a shorter one that was not; other files stay."""
    bucket.put("shard-00007.aio", b"from another run")
    bucket.put("notes.txt", b"the user's")
    bucket.put("shard-00009.aio/inside", b"the user's")

    pack(bucket.url, bucket.options)

    assert bucket.names() == sorted([*FILES, "notes.txt", "shard-00009.aio/inside"])


def test_a_complete_set_is_not_written_over(bucket: Bucket) -> None:
    """The message says what to do."""
    pack(bucket.url, bucket.options)

    with pytest.raises(ConfigError, match="holds a complete data set; remove it first"):
        Writer(bucket.url, FIELDS, storage_options=bucket.options)


def test_of_two_writers_the_first_to_finish_stands(bucket: Bucket) -> None:
    """The other learns of it; its manifest does not replace the first one's."""
    first, second = (
        Writer(bucket.url, FIELDS, metadata=name, storage_options=bucket.options)
        for name in ("first", "second")
    )
    first.close()

    with pytest.raises(ConfigError, match="another Writer has finished a set"):
        second.close()

    assert b'"first"' in bucket.read("manifest.json")


def test_two_writers_of_the_same_set_agree(bucket: Bucket) -> None:
    """A manifest that is there already, word for word, may be one's own whose receipt was lost."""
    first, second = (Writer(bucket.url, FIELDS, storage_options=bucket.options) for _ in range(2))

    first.close()
    second.close()

    assert bucket.names() == FILES[:3]


def test_a_refused_key_is_told_before_anything_is_packed(bucket: Bucket) -> None:
    """The first question to the bucket is asked when the writer is made."""
    wrong = bucket.options | {"secret_access_key": "not-the-secret"}

    with pytest.raises(StorageError, match="access was refused") as caught:
        Writer(bucket.url, FIELDS, storage_options=wrong)

    assert caught.value.final
    assert "not-the-secret" not in str(caught.value)


def test_a_missing_bucket_is_named(seaweed: Seaweed) -> None:
    """It is not made."""
    with pytest.raises(NotFoundError, match="s3://nowhere/set"):
        Writer("s3://nowhere/set", FIELDS, storage_options=seaweed.options)


def test_a_bucket_that_goes_away_closes_the_writer(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is ours, and the writer takes no more."""
    writer = Writer(bucket.url, FIELDS, shard_bytes=5000, storage_options={**bucket.options, "attempts": 1})
    gone = Address.parse("s3://nowhere")
    options = NetworkOptions.parse(bucket.options | {"endpoint": "http://127.0.0.1:9", "attempts": 1})
    monkeypatch.setattr(writer._folder, "_store", make_store(gone, options))

    writer.write({"data": b"short", "label": 1})
    with pytest.raises(StorageError, match="cannot connect"):
        writer.close()

    assert repr(writer).startswith("<Writer closed")
    assert bucket.names() == []


def test_the_command_packs_into_a_bucket(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aioload pack` takes an address, keys from the environment, and reports what it packed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.options["secret_access_key"])
    for name in ("one.png", "two.png"):
        (tmp_path / name).write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    table = tmp_path / "table.csv"
    table.write_text("path,number\none.png,1\ntwo.png,2\n")
    options = ["--storage-option", f"endpoint={bucket.options['endpoint']}", "--storage-option", "attempts=2"]

    ended = CliRunner().invoke(app, ["pack", str(table), bucket.url, "--json", *options])

    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.output)["records"] == 2
    assert json.loads(ended.output)["bytes"] == sum(map(len, bucket.files().values()))
    assert bucket.names() == FILES[:3]


@pytest.mark.parametrize("option", ["region", "attempts=six", "secret_access_key=x"])
def test_a_storage_option_that_is_none_is_a_mistake_of_use(tmp_path: Path, option: str) -> None:
    """Secrets too: what stands on a command line is no secret."""
    arguments = ["pack", str(tmp_path), "s3://bucket/set", "--storage-option", option]

    ended = CliRunner().invoke(app, arguments)

    assert ended.exit_code == 2
