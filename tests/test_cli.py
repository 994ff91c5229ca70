"""Each command does one thing: what it prints, what it leaves, and the status with which it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY_RECORDS, TinySet
from PIL import Image
from typer.testing import CliRunner, Result

import aioload
from aioload.cli._app import app
from aioload.cli._console import parse_size, short

CASES = Path(__file__).parent / "cases" / "files"
REPOSITORY = Path(__file__).parent.parent


def aio(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")


def run(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-c", "from aioload.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=False,
    )


def photos(folder: Path, count: int, classes: int = 2) -> Path:
    """Write small photos, a sub-folder a class; each class has a colour."""
    random = np.random.default_rng(5)
    for number in range(count):
        pixels = random.integers(0, 60, (40 + number % 7, 50, 3), np.uint8)
        pixels[..., number % classes] += 180
        path = folder / f"class-{number % classes}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def damage(path: Path, place: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.fixture
def copy(tiny_set: TinySet, tmp_path: Path) -> Path:
    """A copy of the tiny set, to be damaged."""
    return Path(shutil.copytree(tiny_set.path, tmp_path / "copy"))


# all commands


def test_version_is_told() -> None:
    """`--version` prints the package's version and ends well."""
    result = aio("--version")

    assert (result.exit_code, result.output) == (0, f"aioload {aioload.__version__}\n")


@pytest.mark.parametrize(
    "command", ["pack", "inspect", "verify", "bench", "plan", "demo", "cache", "cache ls", "cache prune"]
)
def test_each_command_explains_itself(command: str) -> None:
    """`--help` of a command ends well and names the command."""
    result = aio(*command.split(), "--help")

    assert result.exit_code == 0
    assert f"aioload {command}" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("pack", "one"),
        ("pack", "a", "b", "--shard-size", "big"),
        ("pack", "a", "b", "--workers", "-1"),
        ("pack", "a", "b", "--kind", "zip"),
        ("pack", "a", "b", "--quality", "0"),
        ("inspect", "a", "--save", "b"),
        ("demo", "--epochs", "0"),
        ("cache", "prune"),
        ("cache", "prune", "--all", "--older", "3"),
        ("cache", "prune", "--bytes", "lots"),
        ("cache", "prune", "--older", "-1"),
    ],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    """A command that cannot be understood ends with 2, before it touches anything."""
    result = aio(*arguments)

    assert result.exit_code == 2


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_fault_is_one_line(tmp_path: Path, command: str) -> None:
    """What is at fault in the data is one line on stderr, no traceback, and status 1."""
    result = aio(command, tmp_path / "missing")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("aioload: ")
    assert result.stderr.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """With `--debug` the error itself comes out."""
    result = aio("--debug", "inspect", tmp_path / "missing")

    assert isinstance(result.exception, aioload.AioloadError)


def test_the_command_line_loads_no_torch(tmp_path: Path) -> None:
    """Commands that train nothing start without torch."""
    script = "import sys, aioload.cli; sys.exit('torch' in sys.modules)"

    status = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode

    assert status == 0


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("256MiB", 256 << 20), ("1GB", 10**9), ("1.5 kib", 1536), ("500000", 500_000), ("2G", 2 * 10**9)],
)
def test_sizes_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    """A size may have a unit, of 1000 or of 1024."""
    assert parse_size(text) == num_bytes


def test_shown_values_cannot_steer_a_terminal() -> None:
    """What is shown of the data is one line, short, and has no control characters."""
    assert short("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert short("x" * 100, 10) == "x" * 9 + "…"


# pack


def test_pack_then_inspect_then_verify(tmp_path: Path) -> None:
    """A folder is packed, and the set is shown and found to be whole."""
    photos(tmp_path / "src", 20)

    packed = aio("pack", tmp_path / "src", tmp_path / "set", "--index-field", "label", "--shard-size", "4KiB")
    shown = json.loads(aio("inspect", tmp_path / "set", "--json").stdout)
    verified = aio("verify", tmp_path / "set")

    assert (packed.exit_code, verified.exit_code) == (0, 0)
    assert packed.stdout.startswith(f"packed 20 records from folder into {tmp_path / 'set'}: ")
    assert (shown["records"], shown["fields"]) == (20, {"image": "image", "label": "int"})
    assert (shown["index_fields"], shown["metadata"]) == (["label"], {"classes": ["class-0", "class-1"]})
    assert len(shown["shards"]) > 3
    assert "all well; 20 records" in verified.stdout


def test_pack_names_what_it_cannot_read(tmp_path: Path) -> None:
    """Unreadable files are named at the end with their reasons, the status is 1, and no set is left."""
    result = aio("pack", CASES / "images", tmp_path / "set")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{CASES / 'images' / 'empty.jpg'}: the file is empty\n" in result.stderr
    assert result.stderr.startswith("7 files could not be packed:\n")
    assert result.stderr.splitlines()[-1].startswith("aioload: 7 of the files cannot be packed")
    assert not list(tmp_path.glob("set/*"))


def test_pack_leaves_out_bad_files_when_told(tmp_path: Path) -> None:
    """With `--skip-bad` the rest is packed, the status is 0, and the files are still named."""
    result = aio("pack", CASES / "images", tmp_path / "set", "--skip-bad")

    assert result.exit_code == 0
    assert result.stdout.startswith("packed 12 records")
    assert "html.jpg: not an image" in result.stderr
    assert len(aioload.Dataset(tmp_path / "set")) == 12


def test_pack_tells_machines(tmp_path: Path) -> None:
    """`--json` gives counts and bad files on stdout, also when the run fails."""
    good = json.loads(aio("pack", CASES / "images", tmp_path / "set", "--skip-bad", "--json").stdout)
    bad = json.loads(aio("pack", CASES / "images", tmp_path / "other", "--json").stdout)

    assert (good["records"], good["shards"], len(good["unreadable"])) == (12, 1, 7)
    assert bad["unreadable"] == good["unreadable"]
    assert bad["error"].startswith("7 of the files cannot be packed")


def test_pack_is_quiet_when_told(tmp_path: Path) -> None:
    """With `--quiet` nothing is printed when all is well."""
    photos(tmp_path / "src", 4)

    result = aio("pack", tmp_path / "src", tmp_path / "set", "--quiet", "--shuffle", "--seed", 3)

    assert (result.exit_code, result.output) == (0, "")


def test_pack_takes_several_archives(tmp_path: Path) -> None:
    """Archives may be given one by one, the folder to be made comes last."""
    copies = [shutil.copy(CASES / "tar" / name, tmp_path) for name in ("edge-a.tar", "edge-b.tar")]

    result = aio("pack", *copies, tmp_path / "set", "--check", "none")

    assert result.exit_code == 0
    assert len(aioload.Dataset(tmp_path / "set")) == 4


def test_pack_does_not_overwrite(tmp_path: Path, tiny_set: TinySet) -> None:
    """A folder that holds a set is left as it is."""
    photos(tmp_path / "src", 4)

    result = aio("pack", tmp_path / "src", tiny_set.path)

    assert result.exit_code == 1
    assert len(aioload.Dataset(tiny_set.path)) == TINY_RECORDS


# inspect


def test_inspect_shows_a_set(tiny_set: TinySet) -> None:
    """Counts, fields, shards and the first records are shown."""
    result = aio("inspect", tiny_set.path)

    assert result.exit_code == 0
    assert f"{TINY_RECORDS} records" in result.stdout
    assert "  image  image\n  label  int\n  name   str\n" in result.stdout
    assert "0  tiny/0000  image: " in result.stdout
    assert "label: 2  name: 零2" in result.stdout


def test_inspect_shows_a_record(tiny_set: TinySet) -> None:
    """One record is shown with its place and what its fields decode to."""
    result = json.loads(aio("inspect", tiny_set.path, "--record", 5, "--json").stdout)

    assert (result["record"], result["key"], result["shard"]) == (5, "tiny/0005", "shard-00000.aio")
    assert result["fields"]["image"]["value"] == "uint8 (8, 6, 3)"
    assert result["fields"]["label"] == {"kind": "int", "bytes": 8, "value": "2"}


def test_inspect_saves_the_bytes_of_a_record(tiny_set: TinySet, tmp_path: Path) -> None:
    """The fields of a record are written to files with fitting suffixes."""
    result = aio("inspect", tiny_set.path, "--record", 1, "--save", tmp_path / "saved")

    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "00000001-image.png",
        "00000001-label.i64",
        "00000001-name.txt",
    ]
    pixels = np.asarray(Image.open(tmp_path / "saved" / "00000001-image.png"))
    assert (pixels == tiny_set.pixels[1]).all()
    assert (tmp_path / "saved" / "00000001-name.txt").read_text() == tiny_set.names[1]


def test_saved_files_stay_in_their_folder(tmp_path: Path) -> None:
    """No name of a field leads out of the folder, and no two fields share a file."""
    names = ["../../out", ".._.._out", "/etc/x", ".", "..", "a/b", "a_b", "a?b"]
    with aioload.Writer(tmp_path / "set", fields=dict.fromkeys(names, "bytes")) as writer:
        writer.write({name: name.encode() for name in names})

    result = aio("inspect", tmp_path / "set", "--record", 0, "--save", tmp_path / "deep" / "saved")

    files = list((tmp_path / "deep" / "saved").iterdir())
    assert result.exit_code == 0
    assert sorted(path.read_bytes() for path in files) == sorted(name.encode() for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "set"]


def test_inspect_shows_what_a_damaged_record_says(copy: Path) -> None:
    """A damaged record does not hide the rest, its line says what is wrong; asked for, it is an error."""
    damage(copy / "shard-00000.aio", 100)

    overview = aio("inspect", copy)
    alone = aio("inspect", copy, "--record", 0)

    assert overview.exit_code == 0
    assert "0  record 0 (byte " in overview.stdout
    assert "1  tiny/0001" in overview.stdout
    assert (alone.exit_code, "failed its checksum" in alone.stderr) == (1, True)


def test_a_record_that_is_not_there_is_an_error(tiny_set: TinySet) -> None:
    """A number beyond the last record is an error that tells how many there are."""
    result = aio("inspect", tiny_set.path, "--record", TINY_RECORDS)

    assert (result.exit_code, f"{TINY_RECORDS} records" in result.stderr) == (1, True)


# verify


def test_verify_names_each_problem(copy: Path) -> None:
    """Each damaged record is named with its place, and the status is 1."""
    damage(copy / "shard-00000.aio", 100)

    result = aio("verify", copy)

    assert result.exit_code == 1
    assert result.stdout.startswith("shard-00000.aio, record 0, records, byte ")
    assert "1 problem; 24 records" in result.stdout


def test_verify_tells_machines(copy: Path) -> None:
    """`--json` gives the problems as they are."""
    damage(copy / "shard-00000.aio", 100)

    result = aio("verify", copy, "--json")

    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"], report["problems"][0]["record"]) == (1, False, 0)


@pytest.mark.parametrize("name", ["manifest.json", "index.aioi", "shard-00000.aio"])
def test_verify_survives_a_lost_file(copy: Path, name: str) -> None:
    """A file that is missing is a problem, not a traceback."""
    (copy / name).unlink()

    result = aio("verify", copy)

    assert (result.exit_code, result.stderr) == (1, "")
    assert name in result.stdout


def test_verify_is_quiet_when_told(tiny_set: TinySet) -> None:
    """With `--quiet` nothing is printed when all is well."""
    result = aio("verify", tiny_set.path, "--quiet")

    assert (result.exit_code, result.output) == (0, "")


# demo


@pytest.mark.timeout(180)
def test_the_demo_learns(tmp_path: Path) -> None:
    """The demo draws, packs and trains, and gets over 95% of the digits that it has not seen."""
    ended = run("demo", "--out", tmp_path / "demo", folder=tmp_path)

    lines = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines[0].startswith("drew    6,000 digits")
    assert [line.split(":")[0] for line in lines[3:9]] == [*(f"epoch {n}/5" for n in range(1, 6)), "held out"]
    assert float(lines[8].split()[2].rstrip("%")) > 95
    assert len(aioload.Dataset(tmp_path / "demo" / "train")) == 5400


@pytest.mark.timeout(120)
def test_a_small_demo_is_no_failure(tmp_path: Path) -> None:
    """So few digits that nobody could learn from them are told, with status 0."""
    ended = run("demo", "--samples", 100, "--epochs", 1, "--workers", 0, folder=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "not enough to learn more than 95%" in ended.stdout


@pytest.mark.timeout(120)
def test_the_demo_takes_photos(tmp_path: Path) -> None:
    """Images of any size in class folders are trained on, unreadable ones left out, and no file is left."""
    photos(tmp_path / "mine", 60)
    (tmp_path / "mine" / "class-0" / "bad.jpg").write_bytes(b"")

    ended = run("demo", "--data", tmp_path / "mine", "--epochs", 1, "--workers", 1, folder=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 unreadable file left out" in ended.stdout
    assert "held out: " in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_demo_needs_two_classes(tmp_path: Path) -> None:
    """A folder with one class is too little to learn from, and says so."""
    photos(tmp_path / "mine", 40, classes=1)

    result = aio("demo", "--data", tmp_path / "mine")

    assert (result.exit_code, "1 sub-folder and 40 images" in result.stderr) == (1, True)
