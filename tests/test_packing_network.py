"""Packing and exporting over a network: what lies behind an address gives the set that its copy would."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import foreign_sets
import obstore
import pytest
from obstore.store import S3Store
from servers.ranges import RangeServer
from servers.seaweed import Seaweed
from typer.testing import CliRunner, Result

from aioload import ConfigError, Dataset, ShardError, Writer
from aioload.cli._app import app
from aioload.packing import export, find_source, pack


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes and unpacked files go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))


def aio(*arguments: object, status: int = 0) -> Result:
    """Run a command in this process, which must end with this status."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def sets(folder: Path) -> Path:
    """Write a set of each kind, of the same twelve samples."""
    folder.mkdir()
    for number, wanted in enumerate((range(5), range(5, 12))):
        tar = foreign_sets.make_tar(wanted)
        (folder / f"x-{number}.tar").write_bytes(tar)
        (folder / f"x-{number}.tar.gz").write_bytes(gzip.compress(tar))
        (folder / f"x-{number}.tfrecord").write_bytes(foreign_sets.make_tfrecord(wanted))
    foreign_sets.make_mds(folder / "mds", [range(5), range(5, 12)])
    with Writer(folder / "own", {"bin": "bytes", "cls": "int"}, shard_bytes=300) as writer:
        for number in range(12):
            writer.write({"bin": foreign_sets.sample_bytes(number), "cls": number}, key=f"{number:05}")
    return folder


@pytest.mark.parametrize("name", ["x-{0..1}.tar", "x-{0..1}.tar.gz", "x-{0..1}.tfrecord", "mds", "own"])
def test_an_address_is_packed_as_its_copy_is(tmp_path: Path, name: str) -> None:
    """Shards of every kind and packed sets, from a web server: the very same set comes of it."""
    folder = sets(tmp_path / "sets")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    aio("pack", folder / name, tmp_path / "near", "--quiet")
    with RangeServer(files) as server:
        aio("pack", f"{server.url}/{name}?sig=topsecret", tmp_path / "far", "--quiet")

    near, far = Dataset(tmp_path / "near"), Dataset(tmp_path / "far")
    assert foreign_sets.numbers(far) == list(range(12))
    assert far.table.fingerprint() == near.table.fingerprint()


def test_bad_records_behind_an_address_are_left_out(tmp_path: Path) -> None:
    """They are named without what signs the address; the others are packed."""
    data = bytearray(foreign_sets.make_tar(range(6)))
    data[data.index(b"00003.cls") + 104] ^= 1

    with RangeServer({"a.tar": bytes(data), "b.tar": foreign_sets.make_tar(range(6, 9))}) as server:
        urls = [f"{server.url}/{name}.tar?sig=topsecret" for name in "ab"]
        refused = aio("pack", *urls, tmp_path / "none", status=1)
        report = aio("pack", *urls, tmp_path / "some", "--skip-bad")

    assert foreign_sets.numbers(Dataset(tmp_path / "some")) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert "record 3 (a.tar)" in refused.stderr
    assert "record 3 (a.tar)" in report.stderr
    assert "topsecret" not in refused.output + report.output


@pytest.mark.parametrize("name", ["table.csv", "rows.parquet", "lines.jsonl"])
def test_what_only_a_disk_can_hold_is_refused(name: str) -> None:
    """Tables are no sets: the error says so at once, and quotes nothing that may be secret."""
    with pytest.raises(
        ConfigError, match=r"^https://… cannot be packed as .* copy it to a disk first"
    ) as caught:
        find_source([f"https://me:word@example.com/{name}?sig=word"])

    assert "word" not in str(caught.value)


def test_another_kind_than_asked_for_is_refused(tmp_path: Path) -> None:
    """What an address holds is told by its bytes; --kind may not say otherwise."""
    with (
        RangeServer({"a.tar": foreign_sets.make_tar(range(2))}) as server,
        pytest.raises(ConfigError, match="no 'tfrecord' but 'webdataset'"),
    ):
        find_source([f"{server.url}/a.tar"], kind="tfrecord")


class Bucket:
    """A folder of the server's bucket, looked at past everything under test."""

    def __init__(self, server: Seaweed, folder: str) -> None:
        self.url, self.options = f"s3://{server.bucket}/{folder}", server.options
        self._folder = folder
        self._store = S3Store(server.bucket, **server.options, client_options={"allow_http": True})

    def names(self) -> list[str]:
        """Return the names of its files, sorted."""
        found = obstore.list(self._store, self._folder).collect()
        return sorted(file["path"].removeprefix(f"{self._folder}/") for file in found)

    def put(self, name: str, data: bytes) -> None:
        """Store a file."""
        obstore.put(self._store, f"{self._folder}/{name}", data)

    def get(self, name: str) -> bytes:
        """Return what a file holds."""
        return bytes(obstore.get(self._store, f"{self._folder}/{name}").bytes())

    def flags(self) -> list[str]:
        """Return the options as the command line takes them, but for the secret."""
        return [
            part
            for name, value in self.options.items()
            if name != "secret_access_key"
            for part in ("--storage-option", f"{name}={value}")
        ]


@pytest.fixture
def bucket(seaweed: Seaweed, request: pytest.FixtureRequest) -> Bucket:
    """A folder of the test's own, empty."""
    return Bucket(seaweed, request.node.name.replace("[", "-").replace("]", ""))


def test_archives_go_out_to_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    """The same as into a folder, to the byte; they are read and packed from there; twice is refused."""
    own = Dataset(sets(tmp_path / "sets") / "own")
    options: dict[str, Any] = {"storage_options": bucket.options}

    near = export(own, tmp_path / "near", shard_bytes=16 << 10)
    far = export(own, bucket.url, shard_bytes=16 << 10, **options)

    assert near == far
    assert bucket.names() == list(far.shards)
    assert len(far.shards) > 1
    assert [bucket.get(name) for name in far.shards] == [
        (tmp_path / "near" / name).read_bytes() for name in far.shards
    ]
    pack(find_source([bucket.url], **options), tmp_path / "again")
    assert foreign_sets.numbers(Dataset(tmp_path / "again")) == list(range(12))
    with pytest.raises(ConfigError, match="holds archives"):
        export(own, bucket.url, **options)
    with pytest.raises(ConfigError, match=r"holds shards of others \(shard-000000\.tar and"):
        pack(find_source([tmp_path / "near"]), bucket.url, **options)


def test_compressed_archives_of_a_bucket_are_packed(tmp_path: Path, bucket: Bucket) -> None:
    """All of a folder there, one after the other, each unpacked to a temporary file that goes."""
    for number in range(3):
        data = foreign_sets.make_tar(range(number * 4, number * 4 + 4))
        bucket.put(f"{number}.tar.gz", gzip.compress(data))

    report = pack(find_source([bucket.url], storage_options=bucket.options), tmp_path / "own")

    assert report.records == 12
    assert foreign_sets.numbers(Dataset(tmp_path / "own")) == list(range(12))


def test_an_export_that_fails_leaves_only_whole_archives(tmp_path: Path, bucket: Bucket) -> None:
    """What was under way when a damaged record came is not in the bucket."""
    path = tmp_path / "x.tar"
    path.write_bytes(foreign_sets.make_tar(range(20))[:-5000])

    with pytest.raises(ShardError, match="cut short"):
        export(Dataset(path), tmp_path / "near", shard_bytes=16 << 10)
    with pytest.raises(ShardError, match="cut short"):
        export(Dataset(path), bucket.url, shard_bytes=16 << 10, storage_options=bucket.options)

    near = {each.name: each.read_bytes() for each in (tmp_path / "near").iterdir()}
    assert {name: bucket.get(name) for name in bucket.names()} == near
    assert len(near) == 2


def test_nothing_is_exported_to_a_web_server(tmp_path: Path) -> None:
    """Nothing can be written there, which is told, and no folder of such a name is made."""
    own = sets(tmp_path / "sets") / "own"

    result = aio("export", own, "https://example.com/archives", status=1)

    assert "nothing can be written to https addresses" in result.stderr
    assert not Path("https:").exists()


def test_a_run_that_goes_on_says_what_was_there(tmp_path: Path, bucket: Bucket) -> None:
    """Shards that an earlier run has sent are counted."""
    source = sets(tmp_path / "sets") / "own"
    pack(find_source([source]), tmp_path / "near", shard_bytes=300)
    for number in range(3):
        bucket.put(name := f"shard-{number:05}.aio", (tmp_path / "near" / name).read_bytes())

    report = pack(find_source([source]), bucket.url, shard_bytes=300, storage_options=bucket.options)

    assert report.notes == ("3 shards were there already, from an earlier run, and not sent again",)
    assert "manifest.json" in bucket.names()
