"""Network: is data behind 50 ms as good as on the local disk, also on a bad day?

    python benchmarks/network.py
    python benchmarks/network.py --quick
    python benchmarks/network.py --only photos,day --rounds 5

All over a server of ranges on the loopback address (`_server.py`): 50 ms to the first byte, 40 MB/s for each
connection, connections kept. Each case runs in an interpreter of its own, all in turn and again in the next
round in reverse order; a ratio is taken within a round.

- photos: decoded as in `photos.py`, from the local disk, over the network, and from the disk cache that the
  first epoch has filled. Rates are of whole epochs from the second on.
- spare: the same with one worker, so that decoding leaves a CPU for the network and for a training loop.
- raw: records of 100 to 600 KB as they are, in order and shuffled, and a bare reader of the same bytes: of
  ranges in order, as large and as many at once as is best, and of the records one by one.
- day: two epochs of photos, and a sum over all their batches; the rate is the second one's. On a bad day 2%
  of the answers are 503, 1% resets, 1% cut, 1% stall for 5 s, 2% are 20 times slower.
- memory: 256 KiB records, each read by itself, 200 ms to the first byte, with a limit of 64 MiB. What the
  process tree holds then (see `_measure.py`) beyond the private memory that it has with the least limit.
- cpu: CPU seconds for 1 GB in ranges, eight at once, from a near server, by aioload's storages (retries,
  hedges, checks and all) and by bare obstore.

The server shares the CPUs with what is measured. "Server CPUs" is what it takes of them, and "alone" what the
rate would be if it took none, the rest of the CPUs being used alike: rate / (1 - server's share).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import _data
from _cases import Run, tabulate, take_turns, warm
from _goals import Goal, Round, by_round, judge, machine, more, of, over, verdict_table
from _measure import MIB
from _server import Serving, serving
from _streams import CASES, LATENCY, LIMIT, Setting, arrays, raw

__all__ = ["GOALS"]

RATES = {
    "samples_per_second": "samples/s|,.0f",
    "alone_per_second": "alone|,.0f",
    "mb_per_second": "MB/s|,.0f",
    "cpu_seconds_per_1000": "CPU s / 1,000|.3g",
    "cpu_per_gb": "CPU s / GB|.2f",
    "server_cpus": "server CPUs|.2f",
}
COLUMNS = {
    "photos": {"first_batch_seconds": "first batch s|.2f"} | RATES | {"network_bytes": "network bytes|,.0f"},
    "spare": {"first_batch_seconds": "first batch s|.2f"} | RATES | {"network_bytes": "network bytes|,.0f"},
    "raw": RATES,
    "day": {
        "samples_per_second": "samples/s|,.0f",
        "longest_wait_seconds": "longest wait s|.2f",
        "requests": "requests|,.0f",
        "needed": "needed|,.0f",
        "retries": "retries|,.0f",
        "hedges": "hedges|,.0f",
        "hedges_won": "of them won|,.0f",
    },
    "memory": {
        "most_mib": "most MiB|.0f",
        "limit_mib": "limit MiB|.0f",
        "shared_mib": "shared|.0f",
        "private_mib": "private|.0f",
        "reads_in_flight": "reads in flight|.0f",
    },
}
CPU_ROWS = ("web 8 MiB", "web 1 MiB", "bucket 8 MiB", "bucket 1 MiB")
SETS = {
    "photos": _data.photos,
    "spare": _data.photos,
    "raw": raw,
    "day": _data.photos,
    "memory": arrays,
    "cpu": raw,
}


def growth(found: Round) -> float:
    """Return what is held under the limit beyond what is private with the least one, of the limit."""
    least, many = found["memory-least"], found["memory-many"]
    return float((many["most_mib"] - least["private_mib"]) / (LIMIT / MIB))


def same(one: str) -> Any:
    """Make a figure: 1 if a case gave the batches that the local disk gives."""
    return lambda found: float(found[one]["digest"] == found["day-local"]["digest"])


def _goals() -> list[Goal]:
    """Return the table of what must be reached."""
    first = more("photos-network", "photos-local", "first_batch_seconds")
    fresh = of("photos-cached", "network_bytes")
    alone = {"key": "alone_per_second"}
    return [
        Goal("photos", "network / local", over("photos-network", "photos-local"), 0.95),
        Goal("photos", "the same, server apart", over("photos-network", "photos-local", **alone), 0.95),
        Goal("photos", "first batch - local, s", first, 8 * LATENCY, at_least=False),
        Goal("photos", "cached / local", over("photos-cached", "photos-local"), 0.95),
        Goal("photos", "cached: bytes from the network", fresh, 0, at_least=False, digits=0),
        Goal("spare", "network / local", over("spare-network", "spare-local"), 0.95),
        Goal("spare", "cached / local", over("spare-cached", "spare-local"), 0.95),
        Goal(
            "spare",
            "cached: bytes from the network",
            of("spare-cached", "network_bytes"),
            0,
            at_least=False,
            digits=0,
        ),
        Goal("raw", "in order / bare", over("raw-in-order", "raw-bare"), 0.8),
        Goal("raw", "shuffled / bare, record by record", over("raw-shuffled", "raw-bare-shuffled"), 0.8),
        Goal("day", "bad / good", over("day-bad", "day-good"), 0.8),
        Goal("day", "bad, no hedges / good", over("day-bad-unhedged", "day-good"), 0.0),
        Goal("day", "good: same as local", same("day-good"), 1, digits=0),
        Goal("day", "bad: same as local", same("day-bad"), 1, digits=0),
        Goal("day", "bad, no hedges: same", same("day-bad-unhedged"), 1, digits=0),
        Goal("day", "bad: requests / needed", of("day-bad", "requests_over_needed"), 1.15, at_least=False),
        Goal("memory", "growth / limit", growth, 1.1, at_least=False),
        Goal("memory", "reads in flight", of("memory-many", "reads_in_flight"), 64, digits=0),
        *(Goal("cpu", f"{row}: aioload / obstore", _cpu_ratio(row), 1.3, at_least=False) for row in CPU_ROWS),
    ]


def _cpu_ratio(row: str) -> Any:
    return lambda found: found["cpu"][f"{row} aioload"] / found["cpu"][f"{row} obstore"]


GOALS = _goals()


def render(found: dict[str, list[dict[str, Any]]], rounds: int, about: dict[str, Any]) -> str:
    """Return the whole report as Markdown."""
    groups = list(dict.fromkeys(group_of(name) for name in found))
    goals = [goal for goal in GOALS if goal.workload in groups]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, Python {about['python']}, "
        f"{about['date']}; {versions}",
        verdict_table(judge(by_round(found, rounds), goals)),
    ]
    for group, columns in COLUMNS.items():
        if group in groups:
            mine = {name: lines for name, lines in found.items() if group_of(name) == group}
            parts.append(f"**{group}**\n\n{tabulate(mine, columns)}")
    if "cpu" in groups:
        columns = {key: f"{key}|.2f" for key in found["cpu"][0]}
        parts.append(f"**cpu** (s / GB)\n\n{tabulate({'cpu': found['cpu']}, columns)}")
    return "\n\n".join(parts) + "\n"


def group_of(case: str) -> str:
    """Return what a case belongs to."""
    return case.partition("-")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--out", type=Path, help="folder for network.md and network.json")
    parser.add_argument("--only", help=f"some of {','.join(SETS)}, or of their cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records to take")
    parser.add_argument("--seconds", type=float, default=2.0, help="measure epochs until so long")
    parser.add_argument("--seed", type=int, default=0, help="of the bad day")
    parser.add_argument("--quick", action="store_true", help="a look: few records, one round")
    parser.add_argument("--case", choices=CASES, help="run one here and print one line of JSON")
    parser.add_argument("--server", help="address of the server, where one runs")
    options = parser.parse_args()
    options.data = options.data.resolve()
    if options.quick:
        options.scale, options.seconds, options.rounds = min(options.scale, 0.05), 0.2, 1
    if options.case and options.server:
        setting = Setting(options.data, Serving(options.server), options.scale, options.seconds, options.seed)
        print(json.dumps(CASES[options.case](setting)), flush=True)
        return 0
    names = [options.case] if options.case else _chosen(options.only)
    for group in {group_of(name) for name in names}:
        warm(SETS[group](options.data, options.scale))
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    with serving(options.data) as server:
        told = (*common, "--seed", options.seed, "--server", server.url)
        found = take_turns([Run(name, Path(__file__), name, told) for name in names], options.rounds)
    return _report(found, options)


def _chosen(only: str | None) -> list[str]:
    """Return the cases that are asked for by name or group."""
    wanted = only.split(",") if only else list(SETS)
    return [name for name in CASES if name in wanted or group_of(name) in wanted]


def _report(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> int:
    """Print and write what was found; 1 where a goal was missed."""
    about = machine() | {"rounds": options.rounds, "scale": options.scale}
    text = render(found, options.rounds, about)
    out = options.out or options.data / "network"
    out.mkdir(parents=True, exist_ok=True)
    (out / "network.md").write_text(text)
    (out / "network.json").write_text(json.dumps({"machine": about, "runs": found}, indent=1))
    print(text, end="")
    verdicts = judge(by_round(found, options.rounds), GOALS)
    return int(any(verdict.met is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
