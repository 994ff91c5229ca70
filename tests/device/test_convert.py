"""Convert: what becomes of pictures, by plain arithmetic; nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aioload import ConfigError, SampleError
from aioload._device.convert import Convert

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


def pictures(*shape: int) -> Any:
    """Random pixels."""
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_nothing_asked_for_changes_nothing() -> None:
    """The batch is the same object."""
    batch = {"image": pictures(2, 8, 6, 3)}

    assert Convert().on_host(batch) is batch


def test_decoded_pictures_become_channels_last_without_a_copy() -> None:
    """(N, H, W, C) is (N, C, H, W) in that memory format already."""
    image = pictures(2, 8, 6, 3)

    found = Convert(channels_last=True).on_host({"image": image})["image"]

    assert found.equal(image.permute(0, 3, 1, 2))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.data_ptr() == image.data_ptr()


def test_channels_first_gets_the_memory_format() -> None:
    """(N, C, H, W) keeps its shape, and the channels come to lie side by side."""
    image = torch.rand(2, 16, 8, 6)

    found = Convert(channels_last=True).on_host([image])[0]

    assert found.equal(image)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (2, 3, 8, 6)])
def test_mean_and_std_are_taken_out_in_single_precision(
    shape: tuple[int, ...], channels_last: bool, dtype: Any
) -> None:
    """By channel, whichever dimension that is; and rounded once, at the end."""
    image, axis = pictures(*shape), 3 if shape[3] == 3 else 1
    sizes = [3 if place == axis else 1 for place in range(4)]
    expected = (image.float() - torch.tensor(MEAN).reshape(sizes)) / torch.tensor(STD).reshape(sizes)
    if channels_last and axis == 3:
        expected = expected.permute(0, 3, 1, 2)

    found = Convert(channels_last=channels_last, dtype=dtype, mean=MEAN, std=STD).on_host([image])[0]

    assert found.equal(expected.to(dtype))
    assert found.is_contiguous(memory_format=torch.channels_last) or not channels_last


def test_a_dtype_alone_keeps_the_values() -> None:
    """One number serves all channels, and none is no change."""
    image = pictures(2, 8, 6, 3)

    plain = Convert(dtype=torch.float16).on_host([image])[0]
    scaled = Convert(dtype=torch.float32, std=255).on_host([image])[0]

    assert plain.equal(image.to(torch.float16))
    assert scaled.equal(image.float() / 255)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_has_the_dtype_already_is_converted_too(dtype: Any) -> None:
    """Mean and std are taken out, and as exactly as the dtype is."""
    values = torch.arange(12, dtype=dtype).reshape(3, 4) + 1e6

    found = Convert(dtype={"x": dtype}, mean=1e6, std=3).on_host({"x": values})["x"]

    assert found.equal((values - 1e6) / 3)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_picture_that_repeats_itself(channels_last: bool) -> None:
    """Its rows are one in memory, and what comes out has its own."""
    image = pictures(1, 1, 6, 3).expand(2, 8, 6, 3)

    found = Convert(dtype=torch.float32, channels_last=channels_last).on_host([image])[0]

    assert found.equal(image.float().permute(0, 3, 1, 2) if channels_last else image.float())


def test_what_is_no_picture_stays() -> None:
    """Labels, masks of three dimensions, floats, texts."""
    batch = {"label": torch.arange(2), "mask": pictures(2, 8, 6), "box": torch.rand(2, 4), "name": ["a", "b"]}

    found = Convert(channels_last=True, dtype=torch.float16, mean=MEAN).on_host(batch)

    assert all(found[name] is batch[name] or found[name].equal(batch[name]) for name in batch)
    assert [found[name].dtype for name in ("label", "mask")] == [torch.int64, torch.uint8]


def test_fields_can_be_named() -> None:
    """Then these are converted, of whatever shape, and no others."""
    batch = {"image": pictures(2, 8, 6, 3), "mask": pictures(2, 8, 6, 1), "depth": pictures(2, 8)}

    found = Convert(dtype={"image": torch.float16, "depth": torch.float32}, std=255.0).on_host(batch)

    assert [found[name].dtype for name in batch] == [torch.float16, torch.uint8, torch.float32]
    assert found["depth"].equal(batch["depth"].float() / 255)


def test_the_batch_of_the_host_is_left_as_it_was() -> None:
    """What comes out has memory of its own where values change."""
    image = pictures(2, 8, 6, 3)
    before = image.clone()

    Convert(dtype=torch.float32, mean=1.0).on_host([image])[0].zero_()

    assert image.equal(before)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.int32},
        {"dtype": "float16"},
        {"dtype": {"image": torch.uint8}},
        {"mean": 1.0},
        {"std": 1.0},
        {"dtype": torch.float16, "std": 0},
        {"dtype": torch.float16, "std": (1.0, 0.0, 1.0)},
        {"dtype": torch.float16, "mean": "abc"},
        {"dtype": torch.float16, "mean": ()},
        {"dtype": torch.float16, "mean": float("nan")},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """At construction, by name."""
    with pytest.raises(ConfigError, match=r"dtype|mean|std"):
        Convert(**options)


def test_too_few_channels_are_told() -> None:
    """Three numbers and one channel: the error names the field and the way out."""
    with pytest.raises(ConfigError, match=r"mean has 3 numbers, but mask of shape .* has 1 channels"):
        Convert(dtype=torch.float16, mean=MEAN).on_host({"mask": pictures(2, 8, 6, 1)})


def test_what_could_be_either_is_not_guessed() -> None:
    """(N, 3, H, 3) may have its channels in two places."""
    with pytest.raises(SampleError, match=r"may be \(N, H, W, C\) or \(N, C, H, W\)"):
        Convert(channels_last=True).on_host([pictures(2, 3, 8, 3)])
