"""Steady: a storage that makes one attempt a call becomes one that lasts, by wrappers in the right order."""

from __future__ import annotations

from .base import Storage
from .flow import PART_BYTES, Flowing, Splitting
from .gate import SMALLEST_COST
from .hedge import Hedged
from .link import Link
from .retry import Retrying
from .wrapping import Wrapping

__all__ = ["steady"]


def steady(
    storage: Storage,
    link: Link,
    *,
    attempts: int = 6,
    deadline: float = 120.0,
    hedge: bool = True,
    where: str = "",
) -> Wrapping:
    """Wrap a storage.

    From the outside in: large reads are split, so that a part that fails is all that is read again; each part
    is tried again until its deadline; each attempt waits for room in flight, which a part that backs off does
    not keep; and a request is late only by what it takes itself, not by having waited for its turn.

    Args:
        storage: makes one attempt a call.
        link: what all storages over the same connection share.
        attempts: requests for one read at most, hedges not counted.
        deadline: seconds for one read with all its attempts and waits.
        hedge: whether late reads are asked again.
        where: the address of the storage, for messages; without anything secret.
    """
    inner: Storage = Flowing(Hedged(storage, link) if hedge else storage, link)
    part_bytes = max(min(PART_BYTES, link.most), SMALLEST_COST)  # smaller ones would be no less in flight
    return Splitting(Retrying(inner, link, attempts=attempts, deadline=deadline, where=where), part_bytes)
