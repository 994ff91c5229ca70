"""Google's and Azure's storage keep the contract too, as far as their stand-ins behave like them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import obstore
import pytest
from contract import FILES, StorageContract
from servers.clouds import AZURE_ACCOUNT, AZURE_KEY, azure, google

from aioload import errors
from aioload.shard.writer import Writer
from aioload.storage import Storage, read
from aioload.storage.address import Address
from aioload.storage.cloud import CloudStorage
from aioload.storage.options import NetworkOptions
from aioload.storage.stores import make_store

GOOGLE = Address.parse("gs://bucket/contract")
AZURE = Address.parse("az://container/contract")


@pytest.fixture(scope="module")
def google_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a stand-in for Google's storage is reached by, with the files of the contract in it."""
    files = {f"contract/{name}": data for name, data in FILES.items()}
    with google(tmp_path_factory.mktemp("gcs"), "bucket", files) as endpoint:
        yield {"endpoint": endpoint, "anonymous": True}


@pytest.fixture(scope="module")
def azure_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a stand-in for Azure's storage is reached by, with the files of the contract in it."""
    with azure(tmp_path_factory.mktemp("azure"), "container") as endpoint:
        options = {"endpoint": endpoint, "access_key_id": AZURE_ACCOUNT, "secret_access_key": AZURE_KEY}
        store = make_store(AZURE, NetworkOptions.parse(options))
        for name, data in FILES.items():
            obstore.put(store, f"contract/{name}", data)
        yield options


class Twice(CloudStorage):
    """Asks twice for a size, as the stand-in often resets a connection after it has refused a range on it."""

    async def size(self, name: str) -> int:
        try:
            return await super().size(name)
        except errors.StorageError as error:
            if error.final:
                raise
            return await super().size(name)


class TestGoogle(StorageContract):
    @pytest.fixture
    async def storage(self, google_options: dict[str, Any]) -> AsyncIterator[CloudStorage]:
        storage = Twice(GOOGLE, NetworkOptions.parse(google_options))
        yield storage
        await storage.aclose()


class TestAzure(StorageContract):
    @pytest.fixture
    async def storage(self, azure_options: dict[str, Any]) -> AsyncIterator[CloudStorage]:
        storage = CloudStorage(AZURE, NetworkOptions.parse(azure_options))
        yield storage
        await storage.aclose()

    async def test_read_of_an_empty_file_is_a_shard_error(self, storage: Storage) -> None:
        """The stand-in answers with the range 0 to -1, where Azure says 416: any error will do."""
        with pytest.raises(errors.AioloadError):
            await read(storage, "empty.bin", 0, 1)


async def test_azure_pins_versions(azure_options: dict[str, Any]) -> None:
    """A file that was replaced is noticed, and no byte of it is used."""
    options = NetworkOptions.parse(azure_options)
    store = make_store(AZURE, options)
    storage = CloudStorage(AZURE, options)
    obstore.put(store, "contract/changing", b"old bytes!")
    await read(storage, "changing", 0, 3)

    obstore.put(store, "contract/changing", b"new bytes!")

    with pytest.raises(errors.StorageError, match="source changed"):
        await read(storage, "changing", 3, 6)


def test_azure_is_written_to_and_sent_nothing_twice(azure_options: dict[str, Any]) -> None:
    """Tags of Azure are no sums: shards that are there are read back, and stay as they are."""
    store = make_store(AZURE, NetworkOptions.parse(azure_options))
    tags = []
    for _ in range(2):
        with Writer("az://container/set", {"text": "str"}, storage_options=azure_options) as writer:
            writer.write({"text": "a" * 10_000})
        tags.append(obstore.head(store, "set/shard-00000.aio")["e_tag"])
        obstore.delete(store, "set/manifest.json")

    assert tags[0] == tags[1] is not None
