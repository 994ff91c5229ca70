"""Device: between the engine's hand-over and the user, each piece of news reaches the right one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from aioload import SampleError
from aioload._device.convert import Convert
from aioload._device.copier import Copier
from aioload._device.simulated import SimulatedDevice
from aioload._pipeline.deliver import Delivery
from aioload._pipeline.device import copied
from aioload._pipeline.passes import Item
from aioload._pipeline.reorder import Handover
from aioload.stats import Counters


@pytest.fixture
def copier() -> Iterator[Copier]:
    """A copy thread of a device without delays."""
    device = SimulatedDevice()
    found = Copier(device, Counters(), Convert())
    yield found
    found.close()
    device.close()
    device.check()


def made(number: int) -> Delivery:
    """A batch that is full of its number."""
    return Delivery({"x": torch.full((4,), number)}, 4, 32, None)


def test_work_for_the_user_wakes_the_user(copier: Copier) -> None:
    """And not the copy thread, which can do nothing about it."""
    handover: Handover[Item] = Handover(0, 9, lambda item: None)
    landing, woken, done = copied(handover, copier), [], []
    landing.call_when_ready(lambda: woken.append(True))

    handover.ask(lambda: done.append(True))
    errand = landing.errand()

    assert woken == [True]
    assert not handover._has_news()
    assert errand is not None
    errand()
    assert (done, landing.errand()) == ([True], None)


def test_batches_and_errors_keep_their_places(copier: Copier) -> None:
    """What the engine brings out of order comes in order, errors as they are; then the end."""
    error = SampleError("of step 1")
    taken: list[Item] = []
    handover: Handover[Item] = Handover(0, 3, taken.append)
    landing = copied(handover, copier)

    handover.put(1, error, made(2))
    handover.put(0, made(0))
    found = []
    while landing.due < 3:
        landing.wait(1)
        if landing.ready:
            found.append(landing.take_nowait())

    assert found[1] is error
    assert [item.batch["x"].shape for item in found if item is not error] == [(4,), (4,)]
    assert [(item.lease, item.place, item.rows) for item in found if item is not error] == [
        (None, None, 4)
    ] * 2
    assert len(taken) == 3


def test_closing_the_landing_closes_the_hand_over(copier: Copier) -> None:
    """So the engine makes nothing more for it."""
    handover: Handover[Item] = Handover(0, 9, lambda item: None)
    landing = copied(handover, copier)

    landing.close()
    handover.put(0, made(0))

    assert handover.ready == 0
