"""Trace: a process that waits or loops writes down where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from aioload._workers.trace import STACK_SIGNAL, StackFile


@pytest.fixture
def stack() -> Iterator[StackFile]:
    """A stack file, closed at the end."""
    stack = StackFile()
    yield stack
    stack.close()


def test_a_process_writes_where_it_is(stack: StackFile) -> None:
    """The names of the functions are in it, and a second time only the second stack is."""
    stack.handle().listen()

    def deep() -> str:
        stack.clear()
        os.kill(os.getpid(), STACK_SIGNAL)
        return stack.read(5.0)

    first, second = deep(), deep()

    assert "in deep" in first
    assert first.count("test_a_process_writes_where_it_is") == second.count(
        "test_a_process_writes_where_it_is"
    )


def test_a_process_that_writes_nothing_is_not_waited_for_long(stack: StackFile) -> None:
    """A process that is stopped, or whose signal is blocked, has no stack to tell."""
    assert stack.read(0.1) == ""


def test_there_may_be_no_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memfd is missing, a nameless temporary file serves."""
    monkeypatch.delattr(os, "memfd_create")

    stack = StackFile()
    os.write(stack.handle()._fd, b"in deep")
    text = stack.read(1.0)
    stack.close()
    stack.close()

    assert text == "in deep"
