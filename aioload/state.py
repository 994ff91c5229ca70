"""State: where a run stands, as plain JSON; what loading one checks.

A state counts positions of the epoch's order that were handed to the user, whatever was read ahead. It names
no rank, worker or place, so any rank's state serves every rank, at any world size and batch size, wherever
the data lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import ConfigError

__all__ = ["State"]

_VERSION = 1
_MOST_EPOCH = 2**32 - 2  # workers are told the epoch, and the one after it, in 32 bits


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands."""

    epoch: int
    """The epoch that goes on."""
    position: int
    """Positions of its order that were handed out, over all ranks."""
    records: int
    """Records of the data set."""
    fingerprint: str
    """Of the data set's content."""
    seed: int
    """Of all randomness."""
    shuffle: str
    """Mode of the order: "none", "block" or "full"."""
    lanes: int
    """Of the block shuffle; 1 in the other modes."""
    block_bytes: int
    """Of the block shuffle; 0 in the other modes."""
    mix: dict[str, Any] | None = None
    """Of a mix whose weights were changed: the weights, and where its sources stood then; see `Mix`."""
    version: int = _VERSION
    """Of this structure."""

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> State:
        """Return the state that a mapping holds.

        Raises:
            ConfigError: it is none, or of a version that this aioload does not know.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"a state is the dict that state_dict() returned, got {type(data).__name__}")
        version = data.get("version")
        if not data.keys() >= {"version", "fingerprint"}:
            raise ConfigError(
                f"no state of a loader, but a dict of {sorted(map(str, data))[:5]}; what state_dict() "
                "returned is wanted, as it lies in a checkpoint beside the model's"
            )
        if version != _VERSION:
            raise ConfigError(f"the state is of version {version!r}, this aioload reads version {_VERSION}")
        names = {field.name for field in fields(cls)}
        if set(data) | {"mix"} != names:
            wrong = sorted((set(data) | {"mix"}) ^ names, key=str)
            raise ConfigError(f"the state has not the members it should have; missing or unknown: {wrong}")
        state = cls(**dict(data))
        state._check()
        return state

    def check_against(self, own: State) -> None:
        """Refuse to go on with other data or another order than the state was made with.

        Raises:
            ConfigError: names what differs and what to do.
        """
        if (self.fingerprint, self.records) != (own.fingerprint, own.records):
            raise ConfigError(
                f"the state was made with other data: it knows {self.records} records with fingerprint "
                f"{self.fingerprint}, this set has {own.records} with {own.fingerprint}; "
                "open the set that the run began with, or begin anew"
            )
        names = ("seed", "shuffle", "lanes", "block_bytes")
        differ = [
            f"{name}={getattr(self, name)!r} (here {getattr(own, name)!r})"
            for name in names
            if getattr(self, name) != getattr(own, name)
        ]
        if differ:
            raise ConfigError(
                f"the state was made with {', '.join(differ)}; make the loader with these, "
                "or take them from the state with load_state_dict(state, adopt=True)"
            )

    def _check(self) -> None:
        kinds = {"fingerprint": str, "shuffle": str, "mix": type(None) if self.mix is None else dict}
        for field in fields(self):
            value: Any = getattr(self, field.name)
            kind = kinds.get(field.name, int)
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise ConfigError(f"the state's {field.name} is {_short(value)}, which cannot be")
        if self.epoch > _MOST_EPOCH:
            raise ConfigError(f"the state's epoch is {_short(self.epoch)}; epochs go up to {_MOST_EPOCH}")
        if self.position > self.records:
            raise ConfigError(f"the state's position {self.position} lies behind its {self.records} records")
        if self.shuffle not in ("none", "block", "full") or self.lanes < 1:
            raise ConfigError(
                f"the state has no order that is known: shuffle={self.shuffle!r}, lanes={self.lanes}"
            )


def _short(value: object) -> str:
    """Return a value as a message can show it, whatever somebody has put into a state."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python shows, a dict in itself
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"
