"""What all reads over one connection share."""

from __future__ import annotations

import threading

import pytest

from aioload.storage.link import Link, NetworkCounts

MIB = 1 << 20


def test_counts_of_many_threads_add_up() -> None:
    """No count is lost, whoever counts."""
    link = Link()

    def count() -> None:
        for _ in range(1000):
            link.add(requests=1, retries=2)
            link.answered(10)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert link.counts() == NetworkCounts(requests=4000, retries=8000, bytes=40_000)


@pytest.mark.parametrize(
    ("facts", "has_answered"),
    [
        ({}, False),
        ({"throttled": True}, False),
        ({"answered": True}, True),
        ({"filled": 5, "answered": True}, True),
    ],
)
def test_a_place_that_answers_is_remembered(facts: dict[str, object], has_answered: bool) -> None:
    """Also an answer that was no good is one."""
    link = Link()

    link.failed(**facts)  # type: ignore[arg-type]  # of several types

    assert link.has_answered is has_answered


def test_throttling_narrows_the_window_and_rests() -> None:
    """Many refusals in a moment: less in flight, and a rest for all; they are counted."""
    link = Link(clock=lambda: 100.0)

    for _ in range(20):
        link.failed(throttled=True)

    assert link.gate.limit == MIB  # nothing was in flight
    assert link.rest() == pytest.approx(0.1)
    assert link.counts().throttles == 20


def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log says after some seconds why nothing comes, and again only in another outage."""
    now = [0.0]
    link = Link(shown="http://host/set", clock=lambda: now[0])
    told = []

    for now[0] in (0.0, 4.0, 6.0, 12.0, 100.0, 104.0, 108.0):
        link.unreachable()
        told.append(len(caplog.records))

    assert told == [0, 0, 1, 1, 1, 1, 2]
    assert "http://host/set has not been reached for 6 s" in caplog.text


def test_one_hedge_a_second_is_free() -> None:
    """A read that holds up all others is asked again: while they wait for it, nobody earns anything."""
    now = [100.0]
    link = Link(clock=lambda: now[0])
    allowed = []
    for seconds in (0.5, 0.4, 0.2, 0.5, 0.6):
        now[0] += seconds
        allowed.append(link.hedge(MIB))

    assert allowed == [False, False, True, False, True]


def test_hedges_are_earned() -> None:
    """Twenty reads allow one, which counts as a request and takes room until it ends."""
    link = Link()
    early = link.hedge(MIB)
    for _ in range(20):
        link.sent()

    allowed = [link.hedge(MIB), link.hedge(MIB)]
    used = link.gate.used
    link.unhedge(MIB)

    assert (early, allowed) == (False, [True, False])
    assert (used, link.gate.used) == (MIB, 0)
    assert link.counts() == NetworkCounts(requests=1, hedges=1)


def test_users_limit_is_the_window() -> None:
    """By default it begins with 64 MiB and may grow; a user's own is fixed."""
    assert (Link().gate.limit, Link().most) == (64 * MIB, 128 * MIB)
    assert (Link(max_in_flight=5).gate.limit, Link(max_in_flight=5).most) == (5, 5)
