"""Addresses are taken apart, shown without secrets, and told apart by their keys."""

from __future__ import annotations

import pickle
import traceback
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ConfigError
from aioload.storage.address import Address

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "scheme", "host", "path", "query"),
    [
        ("s3://bucket", "s3", "bucket", "", ""),
        ("S3://bucket/a/b/", "s3", "bucket", "a/b", ""),
        ("gs://bucket/odd name?#%20", "gs", "bucket", "odd name?#%20", ""),
        ("az://container/set", "az", "container", "set", ""),
        ("http://Host.example:8080/set/", "http", "host.example:8080", "set", ""),
        ("https://host:443/a%2Fb/c d/ü?x=1&y=%20#part", "https", "host", "a%2Fb/c%20d/%C3%BC", "x=1&y=%20"),
        ("http://host:443", "http", "host:443", "", ""),
        ("http://[::1]:80/x", "http", "[::1]", "x", ""),
        ("https://bücher.example/100%/é?q=ü", "https", "xn--bcher-kva.example", "100%25/%C3%A9", "q=%C3%BC"),
    ],
)
def test_parts_of_an_address(url: str, scheme: str, host: str, path: str, query: str) -> None:
    """Each part is what a request needs: of the web encoded once, of buckets as it stands."""
    address = Address.parse(url)

    assert (address.scheme, address.host, address.path, address.query) == (scheme, host, path, query)


@pytest.mark.parametrize(
    "url",
    [
        *("", "set", "/data/set", "ftp://host/set", "s3:/bucket", "s3:///set", "http://", "http:///set"),
        *(f"http://user:{SECRET}@", f"http://host:{SECRET}/set", f"http://user:{SECRET}@ho st/"),
        *(f"s3://key:{SECRET}@bucket/set", f"http://user:{SECRET}#x@host/set", "http://[::1/x"),
        *(f"az://container/set?sv=1&sig={SECRET}", "s3://..", "s3://../set", "s3://a b/set", "gs://-b/set"),
        f"http://{'a' * 70}.com/",
    ],
)
def test_no_address_is_a_config_error_without_secrets(url: str) -> None:
    """Whatever is wrong, neither the message nor what led to it quotes a password."""
    with pytest.raises(ConfigError, match="address") as caught:
        Address.parse(url)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_secrets_are_kept_and_not_shown() -> None:
    """User, password and query go into requests, and into no text for people."""
    address = Address.parse(f"https://us%40er:{SECRET}%3A@host/set?sig={SECRET}").child("a b")

    assert address.credentials == (b"us@er", f"{SECRET}:".encode())
    assert address.url == f"https://host/set/a%20b?sig={SECRET}"
    assert address.shown == "https://host/set/a%20b"
    assert SECRET not in repr(address) + str(address) + address.shown + address.key()
    assert pickle.loads(pickle.dumps(address)) == address


def test_an_address_without_a_user_has_no_credentials() -> None:
    """None, not two empty texts."""
    assert Address.parse("https://host/set").credentials is None


@pytest.mark.parametrize(
    ("url", "name", "shown"),
    [
        ("s3://bucket/set", "a b?.aio", "s3://bucket/set/a b?.aio"),
        ("s3://bucket", "train/0.aio", "s3://bucket/train/0.aio"),
        ("http://host/set/", "train/a?b#c%20.aio", "http://host/set/train/a%3Fb%23c%2520.aio"),
        ("http://host", "0.aio", "http://host/0.aio"),
    ],
)
def test_files_lie_in_their_folder(url: str, name: str, shown: str) -> None:
    """Signs that mean something in an address mean nothing in a name."""
    assert Address.parse(url).child(name).shown == shown


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1))
def test_any_name_arrives_as_it_is(name: str) -> None:
    """What a server decodes is the name, and nothing of it becomes a query."""
    parts = urlsplit(Address.parse("http://host/set").child(name).url)

    assert unquote(parts.path) == f"/set/{name}"
    assert parts.query == parts.fragment == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "https://host/set?X-Amz-Signature=1&X-Amz-Date=2",
            "https://host/set?X-Amz-Signature=3&X-Amz-Date=4",
        ),
        ("https://host/set?id=7&token=1", "https://host:443/set/?token=2&id=7"),
        ("https://host/set?sv=1&se=2&sig=3", "https://host/set"),
        ("https://a:b@HOST/set", "https://c:d@host/set"),
    ],
)
def test_one_place_has_one_key(one: str, other: str) -> None:
    """A new signature or password does not lose what was cached."""
    assert Address.parse(one).key() == Address.parse(other).key()


def test_places_have_keys_of_their_own() -> None:
    """Folder, scheme, host, bucket, endpoint and what a query asks for tell sets apart."""
    urls = ["s3://b/a", "gs://b/a", "s3://b/a/b", "s3://c/a", "http://b/a", "https://b/a", "http://b:8/a"]
    urls += ["https://b/a?id=1", "https://b/a?id=2", "https://b/a?se=1", "https://b/a?se=2"]
    keys = [Address.parse(url).key() for url in urls]
    keys += [
        Address.parse("s3://b/a").key(endpoint) for endpoint in ("http://one", "http://two", "http://one/x")
    ]

    assert len(set(keys)) == len(keys)


def test_keys_hold_nothing_of_an_endpoints_password() -> None:
    """Only its place."""
    assert Address.parse("s3://b/a").key(f"http://u:{SECRET}@Host:1/") == "host:1!s3://b/a"
