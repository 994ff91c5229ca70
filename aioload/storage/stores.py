"""Stores of obstore: one made from an address and options, with the credentials that are there.

Keys come from the options, else from the environment (obstore reads it), else, for S3, from a profile in the
files that the AWS tools keep, which obstore does not read. A public bucket wants `anonymous`; where there is
nothing of all that, obstore asks the cloud that it may be running in.

obstore's runtime does not survive a fork: in a forked child each call hangs for ever. `Runtime` remembers the
process that used it first, so that a child gets an error in its place.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from .address import Address
    from .options import NetworkOptions

__all__ = ["RUNTIME", "Runtime", "make_store"]

_WHOLE_REQUEST = timedelta(hours=1)  # a read is bounded by its first byte and its gaps, not as a whole
_S3_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_SESSION_TOKENS = ("AWS_SESSION_TOKEN", "AWS_TOKEN")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_BY_PROGRAM = frozenset({"credential_process", "role_arn", "sso_session", "sso_start_url"})


class Runtime:
    """Which process used obstore first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None

    def enter(self) -> None:
        """Note that obstore is about to be used.

        Raises:
            StorageError: it cannot be, as this process was forked from one that had used it.
        """
        process = os.getpid()
        if self._process != process:
            with self._lock:
                if self._process is None:
                    self._process = process
            if self._process != process:
                raise StorageError(
                    "network storage was used before this process was forked, and does not survive that; "
                    "start processes with the 'spawn' or 'forkserver' method, or open the set after the fork",
                    final=True,
                )


RUNTIME = Runtime()
"""Of this process: obstore keeps one runtime for all its stores, and so it is with this."""


def make_store(address: Address, options: NetworkOptions, *, attempts: int = 1) -> ObjectStore:
    """Make a store of the bucket, or container, of an address; does no I/O but to read AWS profiles.

    Args:
        address: of scheme s3, gs or az; its path is no part of the store.
        options: endpoint, keys and time-outs.
        attempts: times that obstore itself tries each request.

    Raises:
        ConfigError: the options do not go together, or with this kind of storage.
    """
    _check(address, options)
    common: dict[str, Any] = {
        "client_options": {
            "allow_http": True,  # an address that says http means it; s3, gs and az themselves are https
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "read_timeout": timedelta(seconds=options.read_timeout),
            "timeout": _WHOLE_REQUEST if attempts == 1 else timedelta(seconds=options.deadline),
        },
        "retry_config": {"max_retries": attempts - 1, "retry_timeout": timedelta(seconds=options.deadline)},
    }
    if options.anonymous:
        common["skip_signature"] = True
    try:
        return _MAKERS[address.scheme](address.host, options, common)
    except ConfigError:
        raise
    except Exception as error:
        # from None: obstore's text may quote an endpoint with a password
        raise ConfigError(f"{address.shown} cannot be opened: {_refusal(error)}") from None


def _refusal(error: Exception) -> str:
    """Say why obstore makes no store, with no more of its text than a code word."""
    found = re.search(r"source: (\w+)", str(error))
    word = found[1] if found else type(error).__name__
    if word == "MissingAccount":
        return (
            "the name of the account is missing; pass it as access_key_id with the key, or set it as "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    return f"obstore refuses the options ({word}); check endpoint, region and keys"


def _check(address: Address, options: NetworkOptions) -> None:
    if options.headers:
        raise ConfigError(f"the option headers goes with http(s) addresses, not with {address.shown}")
    if options.anonymous and (options.access_key_id or options.secret_access_key):
        raise ConfigError("anonymous and keys exclude each other; leave out one of them")
    if bool(options.access_key_id) != bool(options.secret_access_key):
        raise ConfigError("access_key_id and secret_access_key go together; give both or neither")
    if address.scheme == "gs" and options.access_key_id:
        raise ConfigError(
            "gs:// takes no access keys: name a service account's file in GOOGLE_APPLICATION_CREDENTIALS"
        )
    if address.scheme != "s3" and options.region:
        raise ConfigError(f"the option region goes with s3:// addresses, not with {address.shown}")


def _s3(bucket: str, options: NetworkOptions, common: dict[str, Any]) -> ObjectStore:
    from obstore.store import S3Store

    profile = _profile()
    if options.anonymous or options.access_key_id or _any(_S3_ENVIRONMENT):
        profile = {name: value for name, value in profile.items() if name in ("endpoint_url", "region")}
    found = {
        "endpoint": options.endpoint or (None if _any(_ENDPOINTS) else profile.get("endpoint_url")),
        "region": options.region
        or (None if _any(("AWS_REGION", "AWS_DEFAULT_REGION")) else profile.get("region")),
        "access_key_id": options.access_key_id or profile.get("aws_access_key_id"),
        "secret_access_key": options.secret_access_key or profile.get("aws_secret_access_key"),
        "session_token": profile.get("aws_session_token"),
    }
    common |= {name: value for name, value in found.items() if value}
    if options.access_key_id and _any(_SESSION_TOKENS):
        common |= _only_these(common.pop("access_key_id"), common.pop("secret_access_key"))
    elif _BY_PROGRAM & profile.keys() and not found["access_key_id"]:
        common["credential_provider"] = _by_boto3()
    return S3Store(bucket, **common)


def _only_these(key: str, secret: str) -> dict[str, Any]:
    """Give keys in a way that no session token of the environment, which is not theirs, joins them."""
    return {
        "credential_provider": lambda: {"access_key_id": key, "secret_access_key": secret, "expires_at": None}
    }


def _by_boto3() -> Any:
    """Let boto3 find the credentials of a profile that names a role, a login or a program."""
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ConfigError(
            "the AWS profile names a role, a login or a program, which boto3 understands: install boto3, or "
            "put keys into the environment"
        ) from error
    return Boto3CredentialProvider()


def _gs(bucket: str, options: NetworkOptions, common: dict[str, Any]) -> ObjectStore:
    from obstore.store import GCSStore

    if options.endpoint:
        common["base_url"] = options.endpoint
    return GCSStore(bucket, **common)


def _az(container: str, options: NetworkOptions, common: dict[str, Any]) -> ObjectStore:
    from obstore.store import AzureStore

    found = {
        "endpoint": options.endpoint,
        "account_name": options.access_key_id,
        "account_key": options.secret_access_key,
    }
    common |= {name: value for name, value in found.items() if value}
    return AzureStore(container, **common)


_MAKERS = {"s3": _s3, "gs": _gs, "az": _az}


def _any(names: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in names)


def _profile() -> dict[str, str]:
    """Read the profile that AWS_PROFILE names, else the default one, from the files of the AWS tools."""
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    config = _section(
        _aws_file("AWS_CONFIG_FILE", "config"), name if name == "default" else f"profile {name}"
    )
    keys = _section(_aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name)
    if not config and not keys and os.environ.get("AWS_PROFILE"):
        raise ConfigError(f"the AWS profile {name!r} is in neither of the files of the AWS tools")
    return config | keys


def _aws_file(variable: str, name: str) -> Path:
    return Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser()


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # from None: the parser's text quotes the file, which holds keys
        raise ConfigError(f"{path} is not the file of profiles that it should be") from None
    return dict(parser[name]) if parser.has_section(name) else {}
