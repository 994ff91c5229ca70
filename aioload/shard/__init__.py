"""What the stored bytes mean: the own format, its index, and its writer."""

from __future__ import annotations

from .check import Problem, VerifyReport, verify
from .format import FORMAT_VERSION, INDEX_NAME, MANIFEST_NAME, NativeFormat, check_sum, crc32c, shard_name
from .index import Index, Located, parse_index
from .kinds import KEY_NAME, KINDS, NUMERIC_KINDS
from .manifest import Manifest
from .reader import LocalReader, Reader
from .rebuild import rebuild
from .writer import Writer

__all__ = [
    "FORMAT_VERSION",
    "INDEX_NAME",
    "KEY_NAME",
    "KINDS",
    "MANIFEST_NAME",
    "NUMERIC_KINDS",
    "Index",
    "LocalReader",
    "Located",
    "Manifest",
    "NativeFormat",
    "Problem",
    "Reader",
    "VerifyReport",
    "Writer",
    "check_sum",
    "crc32c",
    "parse_index",
    "rebuild",
    "shard_name",
    "verify",
]
