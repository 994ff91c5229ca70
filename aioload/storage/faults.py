"""What obstore says when something fails, as errors of ours: the one place that reads its texts.

obstore has classes for few failures; whether a server throttled, a body was cut or nobody answered stands in
the text alone. That text also quotes addresses and whole answers of servers, which may hold signatures. So
nothing of it is passed on but a status, a code word and a system's message, each found by a strict pattern,
and the error itself is never chained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import AioloadError, ConfigError, NotFoundError, StorageError
from .answers import GATEWAY, THROTTLED, TRIED_AGAIN
from .trial import IGNORED

__all__ = ["Fault", "fault_of"]

_STATUS = re.compile(r"status code: (\d{3})\b|\bstatus: (\d{3}),")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>|\"code\": ?\"(\w{1,60})\"")
_CONNECTING = re.compile(r"legacy::Error\(\s*Connect\b")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_SYSTEM = re.compile(r"\bkind: \w+,\s*message: \"([\w ]{1,80})\"|\b(failed to lookup address)\b")

_NO_RANGES = (
    "Received non-partial response",
    "NotPartial",
    "Content-Range header not present",
    "Content-Range header contained",
)
_OTHER_RANGE = re.compile(r"Requested \d+\.\.\d+, got \d+\.\.\d+")
_TOO_FAR = "Wanted range starting at"
_NO_REGION = "redirect without LOCATION"
_METADATA = re.compile(r"\b169\.254\.(?:169\.254|170\.\d+)\b|\bmetadata\.google\.internal\b")

_FINAL = frozenset({"missing", "changed", "denied", "ranges", "config", "region"})
_RENEWED = frozenset({"RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling"})
"""Codes that come with a 400 or 403 at times, and pass."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong in one request, in facts."""

    kind: str
    """What it was: missing, config, or one of `_SENTENCES`."""

    cause: str
    """The same for people; without secrets."""

    status: int | None = None
    """The server's status, where it answered."""

    connected: bool = True
    """Whether a connection was made."""

    @property
    def throttled(self) -> bool:
        """Whether the server asks for less."""
        return self.status in THROTTLED or "SlowDown" in self.cause or "Throttling" in self.cause

    @property
    def final(self) -> bool:
        """Whether another attempt would end the same way."""
        return self.kind in _FINAL or (
            self.status is not None
            and 400 <= self.status < 500
            and self.status not in TRIED_AGAIN
            and not any(code in self.cause for code in _RENEWED)
        )

    def error(self, name: str, shown: str, *, filled: int = 0) -> AioloadError:
        """Make the error of a request for a file.

        Args:
            name: the file.
            shown: the storage, without secrets.
            filled: bytes that had come before.
        """
        place = f"{shown}/{name}" if name else shown
        if self.kind == "missing":
            return NotFoundError(
                f"there is no {place}{' (' + self.cause + ')' if 'Bucket' in self.cause else ''}; check the "
                "address",
                shard=name,
                status=self.status,
                cause=self.cause,
                final=True,
            )
        if self.kind == "config":
            return ConfigError(f"{place} cannot be asked for: {self.cause}", shard=name)
        return StorageError(
            f"{place}: {_SENTENCES[self.kind].format(cause=self.cause)}",
            shard=name,
            status=self.status,
            cause=self.cause,
            filled=filled,
            throttled=self.throttled,
            unreachable=not self.connected or self.status in GATEWAY,
            final=self.final,
        )


_SENTENCES = {
    "changed": "the file is not the one that was opened ({cause}); open the set again",
    "denied": "access was refused: {cause}; check the keys, or pass anonymous=True for a public bucket. "
    "Without the right to list, a missing file is refused too",
    "ranges": "{cause}; a storage that answers no ranges cannot be streamed from",
    "region": "{cause}; pass its region",
    "credentials": "found no credentials and could not ask the cloud for some: {cause}; pass access_key_id "
    "and secret_access_key or anonymous=True, or set them in the environment",
    "answer": "the server answered {cause}",
    "timeout": "{cause}; the server or the network may be overloaded, else raise read_timeout",
    "connect": "cannot connect: {cause}; check the endpoint and the network",
    "body": "{cause}",
    "other": "{cause}",
}


def fault_of(error: BaseException) -> Fault:
    """Tell what an exception of obstore means."""
    text = str(error)
    name = type(error).__name__
    status, answer = _answer(text)
    if _METADATA.search(text):
        return Fault("credentials", answer or _transport(text).cause)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Fault("missing", answer or "404", 404)
    if name in ("PreconditionError", "AlreadyExistsError", "NotModifiedError") or status == 412:
        return Fault("changed", answer or "412", status or 412)
    if status in (401, 403) and not any(code in answer for code in _RENEWED):
        return Fault("denied", answer, status)
    if status is not None:
        return Fault("answer", answer, status)
    if name in ("InvalidPathError", "UnknownConfigurationKeyError", "RustPanic") or isinstance(
        error, ValueError | TypeError
    ):
        return Fault("config", f"obstore refuses it ({name})")
    return _without_status(text, name)


def _without_status(text: str, name: str) -> Fault:
    if name == "NotSupportedError" or any(words in text for words in _NO_RANGES):
        return Fault("ranges", IGNORED)
    if _OTHER_RANGE.search(text):
        return Fault("ranges", "the server sent another range than was asked for")
    if _TOO_FAR in text:  # a server answered in place of the 416 that obstore expected
        return Fault("answer", "416", 416)
    if _NO_REGION in text:
        return Fault("region", "the bucket lies in another region")
    fault = _transport(text)
    return fault if fault.kind != "other" else Fault("other", f"the request failed ({name})")


def _answer(text: str) -> tuple[int | None, str]:
    """Find the status of an answer, and say it with the server's code word."""
    found = _STATUS.search(text)
    if found is None:
        return None, ""
    status = int(found[1] or found[2])
    code = _CODE.search(text)
    return status, f"{status} ({code[1] or code[2]})" if code else str(status)


def _transport(text: str) -> Fault:
    """Tell what broke where no answer came, or not all of it."""
    found = _KIND.search(text)
    if found is None:  # uploads tell no more than this
        if "error sending request" in text:
            return Fault("connect", "the request could not be sent, or was not answered")
        return Fault("body" if "body error" in text else "other", "the answer was cut short")
    system = _SYSTEM.search(text)
    detail = (system[1] or system[2]).lower() if system else ""
    if found[1] == "Timeout" and _CONNECTING.search(text):
        return Fault("connect", "no connection in time", connected=False)
    if found[1] == "Timeout":
        return Fault("timeout", "nothing came for too long")
    if found[1] == "Connect":
        return Fault("connect", detail or "the connection could not be made", connected=False)
    if found[1] == "Interrupted" or "kind: Body" in text:
        return Fault("body", f"the answer was cut short{': ' + detail if detail else ''}")
    return Fault("connect", detail or "the server closed the connection without an answer")
