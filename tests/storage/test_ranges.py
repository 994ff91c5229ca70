"""The server that goes wrong on purpose goes wrong as it was told, and the same way each time."""

from __future__ import annotations

import http.client
from collections import Counter
from pathlib import Path

from servers.ranges import BAD_DAY, Act, Faults, RangeServer

CONTENT = bytes(range(256)) * 8
NAME = "data.bin"


def ask(server: RangeServer, start: int, stop: int) -> str:
    """What comes of a request, in a word."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    try:
        connection.request("GET", f"/{NAME}", headers={"Range": f"bytes={start}-{stop - 1}"})
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except http.client.IncompleteRead:
        return "cut"
    except ConnectionError:
        return "reset"
    finally:
        connection.close()
    assert status == 503 or body == CONTENT[start:stop]
    return str(status)


def test_shares_are_kept_and_drawn_from_the_seed() -> None:
    """The order of requests changes nothing, and asking again is another draw."""
    faults = Faults(seed=3, status503=0.2, reset=0.2, cut=0.2, stall=0.1, stall_s=0.0, slow=0.1)
    starts = range(100)
    with (
        RangeServer({NAME: CONTENT}, faults=faults) as one,
        RangeServer({NAME: CONTENT}, faults=faults) as two,
    ):
        first = {start: ask(one, start, start + 50) for start in starts}
        again = {start: ask(one, start, start + 50) for start in starts}
        other = {start: ask(two, start, start + 50) for start in reversed(starts)}

    assert first == other
    assert first != again
    assert all(10 <= count <= 30 for end, count in Counter(first.values()).items() if end != "206")
    assert set(first.values()) == {"206", "503", "reset", "cut"}


def test_a_bad_day_is_mostly_good() -> None:
    """Shares that are small stay small."""
    server = RangeServer({NAME: CONTENT}, faults=BAD_DAY)
    with server:
        ends = Counter(ask(server, start, start + 1) for start in range(1000, 1040))

    assert ends["206"] >= 30


def test_it_can_go_down_and_come_back(tmp_path: Path) -> None:
    """At the same address, with files of a folder as well."""
    (tmp_path / NAME).write_bytes(CONTENT)
    with RangeServer(tmp_path) as server:
        up = ask(server, 0, 5)
        server.down()
        down = ask(server, 0, 5)
        server.up()
        again = ask(server, 0, 5)

    assert (up, down, again) == ("206", "reset", "206")


def test_scripts_are_used_up_in_order() -> None:
    """And then all is well."""
    with RangeServer({NAME: CONTENT}) as server:
        server.script(NAME, Act(status=503), Act(cut=3), Act(reset=-1))

        assert [ask(server, 2, 9) for _ in range(4)] == ["503", "cut", "reset", "206"]
    assert [request.sent for request in server.requests] == [0, 3, 0, 7]
