"""Stores are made from options, the environment and AWS profiles, the nearest first."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from aioload import errors
from aioload.storage.address import Address
from aioload.storage.options import NetworkOptions
from aioload.storage.stores import make_store

S3 = Address.parse("s3://bucket/set")
CREDENTIALS = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret
[work]
aws_access_key_id = work-key
aws_secret_access_key = work-secret
aws_session_token = work-token
"""
CONFIG = """
[default]
region = eu-north-1
s3 =
  max_concurrent_requests = 20
[profile work]
region = ap-south-1
endpoint_url = http://127.0.0.1:9
[profile login]
sso_session = mine
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without a word on AWS, but for the files of two profiles."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for variable, text in (("AWS_SHARED_CREDENTIALS_FILE", CREDENTIALS), ("AWS_CONFIG_FILE", CONFIG)):
        (tmp_path / variable).write_text(text)
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return monkeypatch


def config_of(options: dict[str, Any], address: Address = S3) -> dict[str, Any]:
    """Return what the store was made with."""
    return dict(make_store(address, NetworkOptions.parse(options)).config)


def test_default_profile_is_used_where_nothing_else_is_said() -> None:
    """Keys and region come from the files of the AWS tools."""
    config = config_of({})

    assert config["access_key_id"] == "default-key"
    assert config["secret_access_key"] == "default-secret"
    assert config["region"] == "eu-north-1"


def test_named_profile_brings_its_token_and_endpoint(environment: pytest.MonkeyPatch) -> None:
    """AWS_PROFILE chooses, also a profile with temporary keys."""
    environment.setenv("AWS_PROFILE", "work")

    config = config_of({})

    assert config["access_key_id"] == "work-key"
    assert config["session_token"] == "work-token"
    assert config["region"] == "ap-south-1"
    assert config["endpoint"] == "http://127.0.0.1:9"


def test_options_come_before_environment_and_environment_before_profile(
    environment: pytest.MonkeyPatch,
) -> None:
    """What is nearer to the call wins, and keys of two places are never mixed."""
    environment.setenv("AWS_PROFILE", "work")
    environment.setenv("AWS_ACCESS_KEY_ID", "env-key")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")

    by_environment = config_of({})
    by_options = config_of({"access_key_id": "own-key", "secret_access_key": "own", "region": "here"})

    assert not {"access_key_id", "secret_access_key", "session_token"} & by_environment.keys()  # obstore's
    assert (by_options["access_key_id"], by_options["region"]) == ("own-key", "here")
    assert "session_token" not in by_options


def test_own_keys_are_not_joined_by_a_session_token_of_the_environment(
    environment: pytest.MonkeyPatch,
) -> None:
    """A token belongs to the keys beside it: with others it would be refused."""
    environment.setenv("AWS_SESSION_TOKEN", "not-ours")

    store = make_store(S3, NetworkOptions.parse({"access_key_id": "own", "secret_access_key": "own"}))

    assert store.credential_provider() == {
        "access_key_id": "own",
        "secret_access_key": "own",
        "expires_at": None,
    }


def test_anonymous_takes_no_keys_from_anywhere() -> None:
    """A public bucket is asked without a signature, whatever profiles there are."""
    config = config_of({"anonymous": True})

    assert config["skip_signature"] in (True, "true")
    assert "access_key_id" not in config


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("s3://b", {"headers": {"a": "b"}}, "headers goes with http"),
        ("s3://b", {"anonymous": True, "access_key_id": "a", "secret_access_key": "b"}, "exclude each other"),
        ("s3://b", {"access_key_id": "a"}, "go together"),
        ("gs://b", {"access_key_id": "a", "secret_access_key": "b"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://b", {"region": "r"}, "region goes with s3"),
        ("az://b", {"anonymous": True}, "name of the account is missing"),
        ("az://b", {"access_key_id": "a", "secret_access_key": "no base64"}, "InvalidAccessKey"),
    ],
)
def test_options_that_cannot_work_are_refused(url: str, options: dict[str, Any], words: str) -> None:
    """Each mistake is told before anything is asked of the network."""
    with pytest.raises(errors.ConfigError, match=words):
        config_of(options, Address.parse(url))


def test_unknown_profile_is_refused(environment: pytest.MonkeyPatch) -> None:
    """A profile that is asked for by name must be there."""
    environment.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(errors.ConfigError, match="'nobody' is in neither"):
        config_of({})


def test_profile_of_a_login_needs_boto3(environment: pytest.MonkeyPatch) -> None:
    """What only boto3 understands is named, in place of asking the cloud."""
    environment.setenv("AWS_PROFILE", "login")
    environment.setitem(sys.modules, "obstore.auth.boto3", None)

    with pytest.raises(errors.ConfigError, match="install boto3"):
        config_of({})


def test_broken_profiles_quote_nothing(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error of a file that cannot be parsed names the file, and not the line with the key."""
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text("aws_secret_access_key = s3cret\n")

    with pytest.raises(errors.ConfigError, match="AWS_SHARED_CREDENTIALS_FILE is not") as caught:
        config_of({})

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_each_kind_of_address_has_a_store() -> None:
    """gs:// and az:// take what their servers want."""
    gs = make_store(
        Address.parse("gs://b/x"), NetworkOptions.parse({"anonymous": True, "endpoint": "http://h"})
    )
    az = config_of(
        {"access_key_id": "account", "secret_access_key": "a2V5"}, Address.parse("az://container/x")
    )

    assert type(gs).__name__ == "GCSStore"
    assert (az["account_name"], az["container_name"]) == ("account", "container")


def test_representations_hold_no_keys() -> None:
    """Options may be printed."""
    options = NetworkOptions.parse({"access_key_id": "own-key", "secret_access_key": "own-secret"})

    assert "own-" not in repr(options) + repr(make_store(S3, options))
