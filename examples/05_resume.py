"""Resume: a run that is stopped in the middle of an epoch and goes on at the very next record.

Shows `state_dict` and `load_state_dict`, saved as JSON beside a checkpoint, and that the batch size and the
number of workers may change in between. Reads what 01_pack.py wrote.
"""

import argparse
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import aioload


def keep_key(sample: dict[str, Any]) -> dict[str, Any]:
    """Keep what tells records apart, in place of the picture."""
    return {"key": sample["__key__"]}


def keys_of(batches: Iterable[Any], count: int | None = None) -> list[str]:
    """Stand in for training: take some batches and return the keys of their records."""
    return [key for batch in islice(batches, count) for key in batch["key"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data

    if not (data / "train").exists():
        parser.exit(2, f"{data / 'train'} is not there; run 01_pack.py first\n")
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "transform": keep_key}
    checkpoint = data / "loader-state.json"

    with aioload.Loader(data / "train", batch_size=16, **options).sync() as batches:
        whole = keys_of(batches)
        following = keys_of(batches)

    # a job that is stopped after five batches
    with aioload.Loader(data / "train", batch_size=16, num_workers=1, **options).sync() as batches:
        before = keys_of(batches, 5)
        checkpoint.write_text(json.dumps(batches.state_dict()))

    # another job, with other settings, goes on
    with aioload.Loader(data / "train", batch_size=24, num_workers=2, **options).sync() as batches:
        batches.load_state_dict(json.loads(checkpoint.read_text()))
        print(f"{len(before)} records were seen, {batches.remaining} of {len(batches)} batches are left")
        after = keys_of(batches)
        epoch_after = keys_of(batches)

    assert before + after == whole, "the two jobs together are not the epoch"
    assert epoch_after == following, "the next epoch is not the one that was to come"
    print(f"{len(before)} + {len(after)} records: each once, in the order of the run that nobody stopped")


main()
