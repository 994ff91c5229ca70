"""Stream from a bucket: pack into it, train two epochs from it, stop in the middle, and go on.

    python examples/12_stream_s3.py s3://bucket/folder
    python examples/12_stream_s3.py s3://bucket/folder --endpoint http://127.0.0.1:8333 --cache

Keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or an AWS profile. `gs://` and `az://`
work alike. Without an address it says so and ends, as it cannot know a bucket of yours.
"""

import argparse
from itertools import chain, islice
from typing import Any

import aioload


def number(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Stand in for decoding and augmentation."""
    return {"number": sample["number"], "noise": float(rng.random())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("address", nargs="?", help="a folder in a bucket, such as s3://bucket/folder")
    parser.add_argument("--endpoint", help="where the bucket is, if not at its cloud's usual place")
    parser.add_argument("--cache", action="store_true", help="keep what was read on this disk")
    options = parser.parse_args()
    if options.address is None:
        print("give the address of a folder in a bucket to see this work")
        return
    storage: dict[str, Any] = {"endpoint": options.endpoint} if options.endpoint else {}

    try:
        pack(options.address, storage)
        stream(options.address, storage, options.cache)
    except aioload.AioloadError as error:
        parser.exit(1, f"{error}\n")


def pack(address: str, storage: dict[str, Any]) -> None:
    fields = {"number": "int", "text": "str"}
    with aioload.Writer(address, fields, shard_bytes=64 << 10, storage_options=storage) as writer:
        for record in range(2000):
            writer.write({"number": record, "text": "x" * 100}, key=f"{record:05}")
    print(f"packed {writer.total_bytes:,} bytes into {writer.shards} shards")


def stream(address: str, storage: dict[str, Any], cache: bool) -> None:
    dataset = aioload.Dataset(address, storage_options=storage, cache_dir=cache or None)
    loading: dict[str, Any] = {"batch_size": 64, "shuffle": True, "transform": number, "num_workers": 2}
    with aioload.Loader(dataset, **loading).sync() as batches:
        epochs = [[batch["number"].tolist() for batch in batches] for _ in range(2)]
        print(batches.report())
        stats = batches.stats()
        print(f"{stats.requests} requests brought {stats.network_bytes:,} bytes; {stats.retries} came again")

    # a job that is stopped after ten batches of its second epoch, and one that goes on
    with aioload.Loader(dataset, **loading).sync() as batches:
        batches.set_epoch(1)
        before = [batch["number"].tolist() for batch in islice(batches, 10)]
        state = batches.state_dict()
    with aioload.Loader(dataset, **loading).sync() as batches:
        batches.load_state_dict(state)
        after = [batch["number"].tolist() for batch in batches]

    assert sorted(chain(*epochs[0])) == list(range(2000)), "not every record came once"
    assert before + after == epochs[1], "the two jobs together are not the epoch"
    print("each record once an epoch, and the second epoch went on where it was stopped")


main()
