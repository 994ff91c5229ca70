"""Collating: a list of samples becomes one batch, numpy in and numpy out.

`default` follows torch's `default_collate`: containers are kept (a tuple becomes a list there, and here too),
arrays and numbers are stacked, text and bytes become lists. Dataclasses are kept as well. What cannot be
collated is a `SampleError` that names the field, the records and the way out.

What is here is called with the samples alone by users; the loader also tells the records' keys (`apply`).
"""

from __future__ import annotations

from .fields import ByField, apply, by_field
from .padding import Pad, pad
from .samples import Collate, as_list, batch_structure, default
from .stacking import Column, Place, Rule, describe, leaf_rule, stack

__all__ = [
    "ByField",
    "Collate",
    "Column",
    "Pad",
    "Place",
    "Rule",
    "apply",
    "as_list",
    "batch_structure",
    "by_field",
    "default",
    "describe",
    "leaf_rule",
    "pad",
    "stack",
]
