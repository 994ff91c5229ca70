"""obstore's texts become errors that say what to do, and hold no secret."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from aioload import errors
from aioload.storage.faults import fault_of

# As obstore 0.12 says it, with what must never get out.
SIGNED = "https://account.blob.core.windows.net/c/x?sig=SECRET%2Bkey&se=2026"
ANSWERED = (
    "Generic S3 error: Error performing GET {url} in 1.2ms - Server returned non-2xx status code: {status}: "
    '<?xml version="1.0"?><Error><Code>{code}</Code><StringToSign>SECRET</StringToSign></Error>'
)
BROKEN = (
    "Generic S3 error: HTTP error: request or response body error\n\nDebug source:\nGeneric {{ source: "
    'HttpError {{ kind: {kind}, source: reqwest::Error {{ url: "https://SECRET", source: hyper::Error('
    "Body, {inner}) }} }} }}"
)


@pytest.mark.parametrize(
    ("status", "code", "kind", "final", "throttled"),
    [
        ("500 Internal Server Error", "InternalError", "answer", False, False),
        ("502 Bad Gateway", "Oops", "answer", False, False),
        ("503 Service Unavailable", "SlowDown", "answer", False, True),
        ("503 Service Unavailable", "ServerBusy", "answer", False, True),
        ("429 Too Many Requests", "TooMany", "answer", False, True),
        ("408 Request Timeout", "Late", "answer", False, False),
        ("400 Bad Request", "RequestTimeout", "answer", False, False),
        ("400 Bad Request", "ExpiredToken", "answer", True, False),
        ("401 Unauthorized", "NoAuthenticationInformation", "denied", True, False),
        ("403 Forbidden", "SignatureDoesNotMatch", "denied", True, False),
        ("404 Not Found", "NoSuchKey", "missing", True, False),
        ("412 Precondition Failed", "PreconditionFailed", "changed", True, False),
        ("416 Range Not Satisfiable", "InvalidRange", "answer", True, False),
    ],
)
def test_an_answer_keeps_its_status_and_its_code(
    status: str, code: str, kind: str, final: bool, throttled: bool
) -> None:
    """Who tries again learns from the facts whether that can help, and whether to slow down."""
    fault = fault_of(GenericError(ANSWERED.format(url=SIGNED, status=status, code=code)))

    assert (fault.kind, fault.final, fault.throttled) == (kind, final, throttled)
    assert fault.status == int(status[:3])
    assert fault.cause == f"{status[:3]} ({code})"


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        (BROKEN.format(kind="Timeout", inner="TimedOut"), "timeout", "nothing came for too long"),
        (BROKEN.format(kind="Interrupted", inner="IncompleteBody"), "body", "the answer was cut short"),
        (
            BROKEN.format(
                kind="Interrupted", inner='Os { kind: ConnectionReset, message: "Connection reset" }'
            ),
            "body",
            "the answer was cut short: connection reset",
        ),
        (
            BROKEN.format(kind="Connect", inner='Os { kind: Refused, message: "Connection refused" }'),
            "connect",
            "connection refused",
        ),
        (BROKEN.format(kind="Connect", inner="?"), "connect", "the connection could not be made"),
        (
            "Generic S3 error: Error performing PUT http://SECRET in 1ms - HTTP error: error sending request",
            "connect",
            "the request could not be sent, or was not answered",
        ),
        ("HTTP error: request or response body error", "body", "the answer was cut short"),
        ("Generic S3 error: something new", "other", "the request failed (GenericError)"),
    ],
)
def test_a_broken_connection_is_tried_again(text: str, kind: str, cause: str) -> None:
    """What broke on the way may work the next time, also what is not understood."""
    fault = fault_of(GenericError(text))

    assert (fault.kind, fault.cause) == (kind, cause)
    assert not fault.final


@pytest.mark.parametrize(
    ("text", "unreachable"),
    [
        (BROKEN.format(kind="Connect", inner='Os { message: "Connection refused" }'), True),
        (BROKEN.format(kind="Timeout", inner="hyper_util::client::legacy::Error(\n Connect,\n"), True),
        (ANSWERED.format(url="u", status="502 Bad Gateway", code="BadGateway"), True),
        (BROKEN.format(kind="Timeout", inner="TimedOut"), False),
        (ANSWERED.format(url="u", status="503 Slow Down", code="SlowDown"), False),
        (BROKEN.format(kind="Interrupted", inner="IncompleteBody"), False),
    ],
)
def test_a_server_that_cannot_be_reached_is_told_from_one_that_is_slow(text: str, unreachable: bool) -> None:
    """The first may be restarting, and is waited for."""
    error = fault_of(GenericError(text)).error("x", "s3://bucket")

    assert error.facts["unreachable"] == unreachable


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Generic S3 error: Received non-partial response when range requested", "ignored the range"),
        ("Generic S3 error: Content-Range header not present in partial response", "ignored the range"),
        ("Generic S3 error: Requested 0..10, got 1..11", "another range"),
        ("Received redirect without LOCATION, this normally indicates", "another region"),
    ],
)
def test_a_storage_that_cannot_be_read_is_final(text: str, words: str) -> None:
    """A server that does not do ranges, or asks elsewhere, would do so again."""
    error = fault_of(GenericError(text)).error("x", "s3://bucket")

    assert words in str(error)
    assert error.final


def test_a_range_that_obstore_itself_finds_too_far_is_a_416() -> None:
    """Some servers answer where others refuse."""
    text = "Generic MicrosoftAzure error: Wanted range starting at 10, but object was only 10 bytes long"

    assert fault_of(GenericError(text)).status == 416


def test_missing_credentials_are_named() -> None:
    """Where the cloud was asked for keys in vain, the message says what to pass."""
    asked = "Error performing PUT http://169.254.169.254/latest/api/token in 5s - HTTP error: sending"

    error = fault_of(GenericError(asked)).error("x", "s3://bucket")

    assert "access_key_id" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        ANSWERED.format(url=SIGNED, status="503 Service Unavailable", code="SlowDown"),
        ANSWERED.format(url=SIGNED, status="403 Forbidden", code="SignatureDoesNotMatch"),
        ANSWERED.format(url=SIGNED, status="404 Not Found", code="NoSuchBucket"),
        BROKEN.format(kind="Connect", inner='Os { message: "failed" }'),
        f"Generic error: {SIGNED}",
    ],
)
def test_no_secret_gets_out(text: str) -> None:
    """Neither the message nor a fact holds what obstore quotes of addresses and answers."""
    error = fault_of(GenericError(text)).error("x", "s3://bucket")

    assert "SECRET" not in str(error) + repr(error.facts)
    assert "s3://bucket/x" in str(error)


def test_a_panic_inside_obstore_is_final() -> None:
    """It would end the same way, and print as much again."""
    panic = type("RustPanic", (Exception,), {})

    error = fault_of(panic("rust future panicked: http://SECRET")).error("x", "s3://bucket")

    assert isinstance(error, errors.ConfigError)
    assert "SECRET" not in str(error)


def test_a_missing_bucket_is_told_from_a_missing_file() -> None:
    """The code word says which of them is not there."""
    text = ANSWERED.format(url="u", status="404 Not Found", code="NoSuchBucket")

    error = fault_of(FileNotFoundError(text)).error("x", "s3://bucket")

    assert isinstance(error, errors.NotFoundError)
    assert "NoSuchBucket" in str(error)
