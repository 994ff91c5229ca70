"""`output="numpy"`: the same batches as arrays, the user's as tensors are, and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import FACES, counted, pack, plain, take_sync
from PIL import Image

import aioload
from aioload import ConfigError, Loader, SampleError

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 100 small records."""
    return counted(tmp_path_factory.mktemp("output") / "set")


def nested(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return containers, numbers of numpy and Python, a tensor, and random numbers of both generators."""
    number = sample["n"]
    return {
        "pair": (np.float32(number), [number, sample["text"]]),
        "raw": b"x" * (number % 3),
        "tensor": torch.full((2,), number, dtype=torch.int16),
        "random": [rng.random(3), np.random.rand()],
    }


def is_of_numpy(batch: Any) -> bool:
    """Tell whether no leaf is a tensor, and all arrays can be written to."""
    leaves = aioload.tree.flatten(batch)[0]
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    return (
        bool(arrays)
        and all(leaf.flags.writeable for leaf in arrays)
        and not any(map(torch.is_tensor, leaves))
    )


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("batch_size", [7, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch(numbers: Path, workers: int, batch_size: int, take: Any) -> None:
    """Make, dtypes, shapes, values and lists of texts are those of tensors, also of the short last batch."""
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "shuffle": True}

    arrays = take(Loader(numbers, output="numpy", **options))
    tensors = take(Loader(numbers, **options))

    assert plain(arrays) == plain(tensors)
    assert all(map(is_of_numpy, arrays))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_user_code_makes_arrives_as_arrays(numbers: Path, workers: int) -> None:
    """Containers, numbers, tensors of user code and random values are the same, whatever they arrive as."""
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "transform": nested, "seed": 5}

    arrays = take_sync(Loader(numbers, output="numpy", **options))
    tensors = take_sync(Loader(numbers, **options))

    assert plain(arrays) == plain(tensors)
    assert all(map(is_of_numpy, arrays))


def test_what_collate_makes_arrives_as_arrays(numbers: Path) -> None:
    """A collate of the user's may return arrays and tensors, nested, and numbers for the whole batch."""

    def collate(samples: list[Any]) -> Any:
        stacked = np.stack([sample["array"] for sample in samples])
        return {"x": (stacked, torch.from_numpy(stacked) * 2), "count": np.int32(len(samples))}

    batch, *_ = take_sync(Loader(numbers, batch_size=4, collate=collate, output="numpy", num_workers=1))

    assert [type(leaf) for leaf in (*batch["x"], batch["count"])] == [np.ndarray] * 3
    np.testing.assert_array_equal(batch["x"][1], batch["x"][0] * 2)
    assert (batch["count"].shape, int(batch["count"])) == ((), 4)


def test_a_tensor_without_a_dtype_in_numpy_is_an_error(numbers: Path) -> None:
    """What numpy cannot hold takes its batch's place as an error that names the dtype."""
    loader = Loader(
        numbers,
        batch_size=4,
        transform=lambda sample: {"x": torch.ones(2, dtype=torch.float8_e5m2)},
        output="numpy",
        num_workers=0,
    )

    with pytest.raises(SampleError, match="numpy has no dtype for torch's float8_e5m2"):
        take_sync(loader)


def test_kept_batches_never_change(numbers: Path) -> None:
    """D3: arrays, slices of them and what others made of them by DLPack outlive loader, epoch and arena."""
    loader = Loader(numbers, batch_size=10, output="numpy", num_workers=2, memory_limit="64MiB")
    kept, expected = [], []

    with loader.sync() as batches:
        for _ in range(20):
            for batch in batches:
                array = batch["array"]
                parts = (
                    array[1:, :, ::2],
                    np.from_dlpack(array),
                    torch.from_dlpack(array),
                    batch["n"][::3],
                )
                kept.append(parts)
                expected.append([np.asarray(part).copy() for part in parts])
                array += 1  # the user's own: seen through all that was made of it, and by nobody else
                for known in expected[-1][:3]:
                    known += 1
                del batch, array

    assert len(kept) == 200
    for parts, known in zip(kept, expected, strict=True):
        for part, value in zip(parts, known, strict=True):
            np.testing.assert_array_equal(np.asarray(part), value)


def test_arrays_are_not_copied(numbers: Path) -> None:
    """All columns of a batch lie in one stretch of memory, and no private copies were made."""
    loader = Loader(numbers, batch_size=50, output="numpy", num_workers=1)

    with loader.sync() as batches:
        owners = [{id(batch[name].base) for name in ("n", "array")} for batch in batches]
    first_may_be_copied = loader.stats().copies

    assert [len(owner) for owner in owners] == [1, 1]
    assert first_may_be_copied <= 1


def test_a_batch_of_which_nothing_is_left_has_no_rows(tmp_path: Path) -> None:
    """F3: where all its samples were skipped, arrays keep their dtype and shape, with 0 rows."""

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if 4 <= sample["n"] < 8:
            raise ValueError("no")
        return sample

    path = counted(tmp_path / "set", 12)
    options: dict[str, Any] = {"transform": refuse, "on_error": aioload.Skip(4), "num_workers": 0}

    _, empty, _ = take_sync(Loader(path, batch_size=4, output="numpy", **options))

    assert {name: len(column) for name, column in empty.items()} == {
        "n": 0,
        "text": 0,
        "array": 0,
        "__key__": 0,
    }
    assert (type(empty["array"]), empty["array"].shape, empty["array"].dtype) == (np.ndarray, (0, 2, 3), "f4")


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cuda"},
        {"device": "meta"},
        {"channels_last": True},
        {"dtype": torch.float16},
        {"dtype": torch.float16, "mean": 1.0, "std": 2.0},
        {"dtype": "float16"},  # as numpy would have it
        {"std": 2.0},
    ],
)
def test_what_is_for_tensors_is_refused(numbers: Path, options: dict[str, Any]) -> None:
    """Devices and conversions are torch's: with arrays they are a ConfigError that says so."""
    with pytest.raises(ConfigError, match="for tensors: leave them out"):
        Loader(numbers, batch_size=2, output="numpy", **options)


@pytest.mark.parametrize("output", ["jax", None, True, ["numpy"]])
def test_other_outputs_are_refused(numbers: Path, output: Any) -> None:
    """Only two words mean something."""
    with pytest.raises(ConfigError, match='output must be "torch" or "numpy"'):
        Loader(numbers, batch_size=2, output=output)


SCRIPT = """
    import sys
    import aioload

    def told(sample):
        return sample | {"torch": int("torch" in sys.modules)}

    def main():
        options = {"batch_size": 8, "transform": told, "shuffle": True, "output": "numpy"}
        for workers in (0, 2):
            with aioload.Loader(sys.argv[1], num_workers=workers, **options).sync() as batches:
                state = None
                for _ in range(2):
                    for batch in batches:
                        assert not batch["torch"].any()
                        state = batches.state_dict()
                batches.load_state_dict(state)
                print(len(batches), batches.stats().samples, len(batches.report()) > 0)
        assert "torch" not in sys.modules
        try:
            aioload.Loader(sys.argv[1], batch_size=8, num_workers=0).sync().__iter__().__next__()
        except Exception as error:
            print("with tensors:", error)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("image", [False, True])
def test_torch_is_not_imported(tmp_path: Path, image: bool) -> None:
    """Where importing torch is an error, here and in workers, epochs run; tensors there are the error."""
    if image:
        file = BytesIO()
        Image.new("RGB", (8, 8), "teal").save(file, "JPEG")
        pictures = ({"image": file.getvalue(), "n": n} for n in range(16))
        path = pack(tmp_path / "set", {"image": "image", "n": "int"}, pictures)
    else:
        path = counted(tmp_path / "set", 16)
    (tmp_path / "torch.py").write_text('raise ImportError("torch is blocked")')
    script = tmp_path / "user_script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    places = os.pathsep.join([str(tmp_path), str(REPOSITORY)])

    done = subprocess.run(
        [sys.executable, str(script), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
        timeout=50,
        check=False,
    )

    told = "with tensors: torch cannot be imported (torch is blocked); install it, "
    told += 'or have arrays with output="numpy"'
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["2 32 True", "2 32 True", told]
