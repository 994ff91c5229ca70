"""What the documents show runs as written: the README's blocks and the examples, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers.seaweed import KEY, SECRET, Seaweed

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# A block is run where this comment stands above it, which readers of the page do not see.
RUNNABLE = re.compile(r"<!-- runs as written -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# A test of documents is a whole session of a user, torch import included.
pytestmark = pytest.mark.timeout(180)


def test_readme_blocks_run_in_order(tmp_path: Path) -> None:
    """A reader who pastes the README's blocks one after the other, in one folder, sees each of them work."""
    blocks = RUNNABLE.findall(_readme())

    ends = [_run([sys.executable, "-c", block], tmp_path) for block in blocks]

    assert len(ends) >= 4
    assert [end for end in ends if end != (0, "")] == []


def test_examples_run_in_order(tmp_path: Path) -> None:
    """The examples run without arguments, in order, in one folder, and have nothing to complain about."""
    ends = {example.name: _run([sys.executable, str(example)], tmp_path) for example in EXAMPLES}

    assert list(ends) == [
        "01_pack.py",
        "02_train_loop.py",
        "03_plain_for.py",
        "04_audio.py",
        "05_resume.py",
        "06_ddp.py",
        "07_webdataset.py",
        "08_tfrecord.py",
        "09_gpu.py",
        "10_audio_mel_cache.py",
        "11_own_storage.py",
        "12_stream_s3.py",
    ]
    assert {name: end for name, end in ends.items() if end != (0, "")} == {}


def test_the_example_of_a_bucket(tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed into a real S3 server, streamed for two epochs, stopped and gone on with."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    example = ROOT / "examples" / "12_stream_s3.py"
    address = f"s3://{seaweed.bucket}/example-12"

    end = _run([sys.executable, str(example), address, "--endpoint", seaweed.endpoint], tmp_path)

    assert end == (0, "")


def test_tests_that_the_design_names_are_there() -> None:
    """What a promise is said to be held by exists, under that name."""
    named = set(re.findall(r"`(test_\w+)[`\[]", (ROOT / "DESIGN.md").read_text()))
    there = {
        name
        for module in (ROOT / "tests").rglob("test_*.py")
        for name in (module.stem, *re.findall(r"def (test_\w+)\(", module.read_text()))
    }

    assert len(named) > 20
    assert named - there == set()


def test_an_example_takes_another_folder(tmp_path: Path) -> None:
    """`--data` says where an example puts its files."""
    end = _run([sys.executable, str(EXAMPLES[0]), "--data", str(tmp_path / "elsewhere")], tmp_path)

    assert end == (0, "")
    assert (tmp_path / "elsewhere" / "train" / "manifest.json").is_file()


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    """What .ci/run takes from the README is one line that installs with the constraints and runs pytest."""
    block = re.search(r"<!-- run by \.ci/run -->\n```sh\n(.*?)^```$", _readme(), re.DOTALL | re.MULTILINE)

    assert block is not None
    assert block[1].count("\n") == 1
    assert "-c constraints.txt" in block[1]
    assert block[1].endswith("-m pytest\n")


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in a folder; its exit status, and what it wrote to standard error."""
    process = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    return process.returncode, process.stderr


def _environment() -> dict[str, str]:
    """This process's environment, with the package of this checkout in front and warnings shown."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
