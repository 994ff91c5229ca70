"""SimulatedDevice: an accelerator made of threads, whose work happens late, and which finds out mistakes.

Tensors on it are torch's ordinary ones over memory of its own, so results can be compared; `launch` stands
for a kernel. What a stream is given happens in its order, at some time after the call has returned, and from
the memory's address, as on a real device: nothing that the host lets go of is kept alive for it.

Real mistakes of this kind show now and then, depending on timing. Here each is noted at once in `faults`:
streams have vector clocks, so an access that nothing orders behind the one before is a fault even if it
happened to come late enough; memory that is given back is filled with `POISON` in the order in which its
stream could use it again; host memory is compared with what it was when the copy was asked for.

Time is real, or with `manual` moved by `advance` alone: then all that was asked for stays undone until the
test says so, and what overlaps can be told to the microsecond.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .interface import Fill, RegisterError

__all__ = ["POISON", "SimulatedDevice", "SimulatedEvent", "SimulatedStream"]

POISON = 0xDB
"""What freed device memory is full of."""

_PATIENCE = 20.0  # seconds after which a wait for the device is a failure and not a hang
_local = threading.local()  # the device and the streams of each host thread

Clock = dict[int, int]
"""By stream, how many of its operations lie before."""
Seconds = Callable[[str, int], float]
"""How long an operation takes, by its kind ("copy", "kernel", …) and bytes."""


def no_time(kind: str, size: int) -> float:
    """Take no time."""
    return 0.0


class SimulatedDevice:
    """A device for tests, which is no faster than it is told to be.

    Args:
        index: its number; a host thread is on device 0 until it has entered another.
        seconds: how long operations take.
        manual: let time stand still until `advance`.
        can_register: whether host memory can be page-locked where it lies.
    """

    overlaps = True

    def __init__(
        self, *, index: int = 0, seconds: Seconds = no_time, manual: bool = False, can_register: bool = True
    ) -> None:
        self.index = index
        self.seconds_of = seconds
        self.can_register = can_register
        self.faults: list[str] = []
        self.broken: dict[str, Exception] = {}  # by method: what its next call raises
        self.calls: list[str] = []  # of what changes the device's memory, its streams or page-locked memory
        self.settled: Callable[[], bool] | None = None  # asked between operations, in manual time
        self._manual = manual
        self._now = 0.0
        self._changed = threading.Condition(threading.RLock())
        self._streams: list[SimulatedStream] = []
        self._blocks: dict[int, _Block] = {}  # by address
        self._free: dict[tuple[int, int], list[_Block]] = {}  # by stream and size
        self._let_go: deque[_Block] = deque()  # by finalizers, which may run anywhere
        self._leaving: list[_Block] = []  # kept for streams that are not done
        self._pinned: dict[int, NDArray[np.uint8]] = {}  # by address
        self._awaited: list[_Operation] = []
        self._capturing: int | None = None
        self._closed = False
        self._default = self._new_stream()
        self._thread = threading.Thread(target=self._work, name="aioload-simulated", daemon=True)
        if not manual:
            self._thread.start()

    # the interface

    @property
    def name(self) -> str:
        """As users call it."""
        return f"simulated:{self.index}"

    def enter(self) -> None:
        """Make it the calling thread's device."""
        _local.device = self.index

    def open_stream(self) -> SimulatedStream:
        """Make a stream."""
        with self._call("open_stream"):
            return self._new_stream()

    def current_stream(self) -> SimulatedStream:
        """Return the stream of the calling thread."""
        found: SimulatedStream = _streams().get(self, self._default)
        return found

    def is_capturing(self) -> bool:
        """Tell whether the calling thread captures."""
        return self._capturing == threading.get_ident()

    @contextlib.contextmanager
    def on(self, stream: SimulatedStream) -> Iterator[None]:
        """Make a stream the calling thread's current one."""
        before = self.current_stream()
        _streams()[self] = stream
        try:
            yield
        finally:
            _streams()[self] = before

    def record(self, stream: SimulatedStream, *, timed: bool = False) -> SimulatedEvent:
        """Mark a place in a stream."""
        with self._locked():
            return SimulatedEvent(self, self._give(stream, "event", 0), timed)

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Have a stream wait."""
        with self._locked():
            _merge(stream.clock, event.operation.clock)
            self._give(stream, "wait", 0, after=[event.operation])

    def seconds(self, first: SimulatedEvent, last: SimulatedEvent) -> float:
        """Return the time between two events."""
        if not (first.timed and last.timed and first.operation.done and last.operation.done):
            self._fault("time between events that are not timed, or do not lie behind")
        return last.operation.ends - first.operation.ends

    def allocate(self, size: int, stream: SimulatedStream) -> Any:
        """Return memory, which may have been somebody's a moment ago."""
        with self._call("allocate"):
            rounded = -(-max(size, 1) // 512) * 512
            spare = self._free.get((stream.number, rounded))
            block = spare.pop() if spare else self._new_block(rounded, stream)
            block.free = False
            block.follows = stream.given
            loan = np.frombuffer(block.memory.data, np.uint8)
            weakref.finalize(loan, self._let_go.append, block).atexit = False
            return torch.from_numpy(loan)[:size]

    def keep(self, block: Any, stream: SimulatedStream) -> None:
        """Have memory wait for a stream when it is given back."""
        with self._locked():
            found = self._block(block)
            if block.data_ptr() != found.address:
                self._fault("a part of a block cannot be kept, only the block")
            found.users.add(stream.number)

    def copy(self, block: Any, host: Any, stream: SimulatedStream) -> None:
        """Copy, later."""
        with self._call("copy"):
            found, size = self._block(block), host.numel()
            if block.numel() != size:
                self._fault(f"{size} bytes are copied into {block.numel()}")
            place = block.data_ptr() - found.address
            source = self._pinned_memory(host.data_ptr(), size)
            locked, start = source is not None, host.data_ptr()
            if source is None:
                self._fault("memory that is not page-locked, or not in one piece, is copied without waiting")
                source = host.numpy().copy()
            before = source.copy()

            def bring() -> None:
                if locked and self._pinned_memory(start, size) is None:
                    self._fault("host memory was no longer page-locked when its copy ran")
                if not np.array_equal(source, before):
                    self._fault("host memory was reused before its copy had run")
                found.memory[place : place + size] = source

            operation = self._give(stream, "copy", size, bring)
            self._writes(found, operation)

    def fill(self, function: Fill, outs: Sequence[Any], ins: Sequence[Any], stream: SimulatedStream) -> None:
        """Compute, later."""
        with self._call("fill"):
            self._launch(lambda *found: function(found[len(ins) :], found[: len(ins)]), ins, outs, stream)

    def send(self, thing: Any, stream: SimulatedStream) -> Any:
        """Call a foreign thing's own method."""
        with self.on(stream):
            return thing.to(self, non_blocking=True)

    def holds(self, tensor: Any) -> bool:
        """Tell whether a tensor is on the device."""
        with self._locked():
            return tensor.untyped_storage().data_ptr() in self._blocks

    def is_pinned(self, tensor: Any) -> bool:
        """Tell whether memory is page-locked."""
        with self._locked():
            return self._pinned_memory(tensor.data_ptr(), tensor.numel() * tensor.element_size()) is not None

    def pin(self, size: int) -> Any:
        """Return page-locked memory."""
        with self._call("pin"):
            memory = np.zeros(size, np.uint8)
            self._pinned[memory.ctypes.data] = memory
            return torch.from_numpy(memory)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Page-lock memory."""
        with self._call("register"):
            if not self.can_register:
                raise RegisterError("this device cannot")
            if not len(memory):
                raise RegisterError("nothing to register")
            self._pinned[memory.ctypes.data] = memory

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo it."""
        with self._call("unregister"):
            del self._pinned[memory.ctypes.data]

    # what a test does with it

    def launch(
        self,
        kernel: Callable[..., None],
        *tensors: Any,
        outs: Sequence[Any] = (),
        stream: SimulatedStream | None = None,
        seconds: float | None = None,
    ) -> SimulatedEvent:
        """Run a kernel late, on the calling thread's stream; it gets `tensors` and then `outs`.

        Args:
            kernel: called with tensors over the device's memory as it is by then.
            tensors: what it reads.
            outs: what it writes.
            stream: where, if not on the current one.
            seconds: how long it takes, if not what the device says.
        """
        with self._locked():
            found = self.current_stream() if stream is None else stream
            operation = self._launch(kernel, tensors, outs, found, seconds)
            return SimulatedEvent(self, operation, timed=True)

    def synchronize(self) -> None:
        """Wait until all streams have nothing left to do."""
        with self._locked():
            last = [stream.queue[-1] for stream in self._streams if stream.queue]
        for operation in last:
            self._wait_for(operation)

    def advance(self, seconds: float) -> None:
        """Let time go by, in manual time."""
        with self._changed:
            until = self._now + seconds
            while True:
                self._settle()
                operation = self._next()
                if operation is None or operation.ends > until:
                    break
                self._now = max(self._now, operation.ends)
                self._do(operation)
            self._now = until

    def finish(self, event: SimulatedEvent) -> None:
        """Let time go by until an event lies behind, in manual time."""
        with self._changed:
            while not event.operation.done:
                self._settle()
                operation = self._next()
                assert operation is not None, "the event waits for something that nobody has asked for"
                self._now = max(self._now, operation.ends)
                self._do(operation)
        event.query()

    @property
    def now(self) -> float:
        """Seconds."""
        return self._now if self._manual else time.perf_counter()

    @property
    def waiting(self) -> int:
        """Host threads that wait for what is not done yet."""
        return sum(not operation.done for operation in self._awaited)

    @property
    def held_bytes(self) -> int:
        """Memory that it has set aside, in use or not."""
        with self._locked():
            return sum(len(block.memory) for block in self._blocks.values())

    @property
    def used_bytes(self) -> int:
        """Memory that somebody has."""
        with self._locked():
            return sum(len(block.memory) for block in self._blocks.values() if not block.free)

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is page-locked."""
        with self._locked():
            return sum(map(len, self._pinned.values()))

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Be captured into a graph: nobody else may touch the device."""
        with self._changed:
            self._capturing = threading.get_ident()
        try:
            yield
        finally:
            self._capturing = None

    def close(self) -> None:
        """End its thread, and say what went wrong."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)

    def check(self) -> None:
        """Raise if anybody made a mistake."""
        assert self.faults == [], "\n".join(self.faults)

    def __repr__(self) -> str:
        return f"<SimulatedDevice {self.name} faults={len(self.faults)}>"

    # inside

    @contextlib.contextmanager
    def _call(self, method: str) -> Iterator[None]:
        """Hold the lock for a call that belongs to a thread of this device."""
        with self._locked():
            if getattr(_local, "device", 0) != self.index:
                self._fault(f"{method} from a thread that is on device {getattr(_local, 'device', 0)}")
            self.calls.append(method)
            if method in self.broken:
                raise self.broken.pop(method)
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._changed:
            if self._capturing not in (None, threading.get_ident()):
                self._fault("the device was touched while another thread captures a graph")
            self._collect()
            yield
            self._changed.notify_all()

    def _fault(self, text: str) -> None:
        self.faults.append(text)

    def _new_stream(self) -> SimulatedStream:
        stream = SimulatedStream(len(self._streams))
        self._streams.append(stream)
        return stream

    def _new_block(self, size: int, stream: SimulatedStream) -> _Block:
        block = _Block(np.full(size, POISON, np.uint8), stream.number)
        self._blocks[block.address] = block
        return block

    def _block(self, tensor: Any) -> _Block:
        found = self._blocks.get(tensor.untyped_storage().data_ptr())
        if found is None:
            self._fault("a tensor of the host, or of another device, is used on this one")
            raise RuntimeError(f"{self.name} has no such memory")
        return found

    def _pinned_memory(self, start: int, size: int) -> NDArray[np.uint8] | None:
        """Return host memory at an address, if all of it lies in one page-locked piece."""
        for address, memory in self._pinned.items():
            if address <= start and start + size <= address + len(memory):
                return memory[start - address : start - address + size]
        return None

    def _give(
        self,
        stream: SimulatedStream,
        kind: str,
        size: int,
        effect: Callable[[], None] | None = None,
        *,
        after: Sequence[_Operation] = (),
        seconds: float | None = None,
    ) -> _Operation:
        """Put work into a stream."""
        _merge(stream.clock, _host_clock(self))
        stream.given += 1
        stream.clock[stream.number] = stream.given
        took = self.seconds_of(kind, size) if seconds is None else seconds
        operation = _Operation(stream.number, stream.given, dict(stream.clock), effect, took, self.now, after)
        stream.queue.append(operation)
        self._changed.notify_all()
        return operation

    def _launch(
        self,
        kernel: Callable[..., None],
        reads: Sequence[Any],
        writes: Sequence[Any],
        stream: SimulatedStream,
        seconds: float | None = None,
    ) -> _Operation:
        tensors = [self._rebuilt(tensor) for tensor in (*reads, *writes)]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        operation = self._give(stream, "kernel", size, lambda: kernel(*tensors), seconds=seconds)
        for block in {id(found): found for found in map(self._block, reads)}.values():
            self._reads(block, operation)
        for block in {id(found): found for found in map(self._block, writes)}.values():
            self._writes(block, operation)
        return operation

    def _reads(self, block: _Block, operation: _Operation) -> None:
        if block.writer is not None and not block.writer.is_before(operation):
            self._fault("device memory is read by a stream that does not wait for what fills it")
        block.readers[operation.stream] = operation

    def _writes(self, block: _Block, operation: _Operation) -> None:
        if operation.clock.get(block.home, 0) < block.follows:
            self._fault("device memory is written before the stream it comes from has done with it")
        if not all(other.is_before(operation) for other in block.uses()):
            self._fault("device memory is written while another stream may use it")
        block.writer, block.readers = operation, {}

    def _collect(self) -> None:
        """Take back what nobody has any more, as a caching allocator does: at once, or after its users."""
        while self._let_go:
            block = self._let_go.popleft()
            home = self._streams[block.home]
            for operation in block.uses():
                if operation.stream in block.users or operation.stream == block.home or operation.done:
                    continue
                if home.clock.get(operation.stream, 0) < operation.number:
                    self._fault("device memory was given back while another stream may still use it")
            block.awaits = [
                stream.queue[-1] for stream in self._streams if stream.queue and stream.number in block.users
            ]
            self._leaving.append(block)
        for block in list(self._leaving):
            if all(operation.done for operation in block.awaits):
                self._leaving.remove(block)
                self._take_back(block)

    def _take_back(self, block: _Block) -> None:
        memory = block.memory
        self._give(self._streams[block.home], "free", 0, lambda: memory.fill(POISON), seconds=0.0)
        block.free, block.writer, block.readers, block.users, block.awaits = True, None, {}, set(), []
        self._free.setdefault((block.home, len(memory)), []).append(block)

    def _rebuilt(self, tensor: Any) -> Any:
        """Return a tensor over the same memory that does not keep it, as a kernel has only an address."""
        memory, size = self._block(tensor).memory, tensor.element_size()
        whole = torch.from_numpy(memory[: len(memory) // size * size]).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _next(self) -> _Operation | None:
        """Return what ends next of all that may begin."""
        self._collect()
        heads = [stream.queue[0] for stream in self._streams if stream.queue]
        found = [head for head in heads if all(operation.done for operation in head.after)]
        for head in found:
            head.begin(self._streams[head.stream].free_at)
        return min(found, key=lambda head: head.ends, default=None)

    def _do(self, operation: _Operation) -> None:
        stream = self._streams[operation.stream]
        try:
            if operation.effect is not None:
                operation.effect()
        except Exception as error:
            self._fault(f"a kernel failed: {error!r}")
        stream.queue.popleft()
        stream.free_at, operation.done, operation.effect = operation.ends, True, None
        self._changed.notify_all()

    def _settle(self) -> None:
        """Let host threads do what they can before time goes on."""
        deadline = time.monotonic() + _PATIENCE
        while self.settled is not None and not self.settled():
            assert time.monotonic() < deadline, "host threads do not come to rest"
            self._changed.wait(0.001)

    def _wait_for(self, operation: _Operation) -> None:
        with self._changed:
            self._awaited.append(operation)
            try:
                if not self._changed.wait_for(lambda: operation.done, _PATIENCE):
                    raise TimeoutError(f"{self.name} did not come to an operation within {_PATIENCE} s")
            finally:
                self._awaited.remove(operation)

    def _work(self) -> None:
        """Be the device."""
        with self._changed:
            while not self._closed:
                operation = self._next()
                left = None if operation is None else operation.ends - self.now
                if operation is None or (left is not None and left > 0):
                    self._changed.wait(left)
                else:
                    self._do(operation)


@dataclass(eq=False)
class SimulatedStream:
    """A row of operations."""

    number: int
    given: int = 0  # operations so far
    free_at: float = 0.0
    queue: deque[_Operation] = field(default_factory=deque)
    clock: Clock = field(default_factory=dict)


class SimulatedEvent:
    """A place in a stream.

    Args:
        device: whose.
        operation: that it comes after.
        timed: whether its time may be asked for.
    """

    def __init__(self, device: SimulatedDevice, operation: _Operation, timed: bool) -> None:
        self.operation = operation
        self.timed = timed
        self._device = device

    def query(self) -> bool:
        """Tell whether it lies behind."""
        with self._device._locked():
            if self.operation.done:
                _merge(_host_clock(self._device), self.operation.clock)
            return self.operation.done

    def synchronize(self) -> None:
        """Wait until it does."""
        with self._device._locked():
            pass  # a capture would mind
        self._device._wait_for(self.operation)
        _merge(_host_clock(self._device), self.operation.clock)


@dataclass(eq=False)
class _Operation:
    """Something that a stream does."""

    stream: int
    number: int
    clock: Clock
    effect: Callable[[], None] | None
    seconds: float
    given_at: float
    after: Sequence[_Operation]
    ends: float = -1.0
    done: bool = False

    def begin(self, free_at: float) -> None:
        """Note when it ends, once it may begin."""
        if self.ends < 0:
            begins = max([self.given_at, free_at, *(operation.ends for operation in self.after)])
            self.ends = begins + self.seconds

    def is_before(self, other: _Operation) -> bool:
        """Tell whether the other one waits for it, however the two come to run."""
        return other.clock.get(self.stream, 0) >= self.number


@dataclass(eq=False)
class _Block:
    """Memory of the device."""

    memory: NDArray[np.uint8]
    home: int  # the stream whose order it follows
    follows: int = 0  # operations of it that were given before it was handed out
    free: bool = False
    writer: _Operation | None = None
    readers: dict[int, _Operation] = field(default_factory=dict)
    users: set[int] = field(default_factory=set)  # streams it is kept for
    awaits: list[_Operation] = field(default_factory=list)

    @property
    def address(self) -> int:
        """Where it lies."""
        return int(self.memory.ctypes.data)

    def uses(self) -> list[_Operation]:
        """Return what was last done with it, on each stream."""
        return [*self.readers.values(), *([] if self.writer is None else [self.writer])]


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def _host_clock(device: SimulatedDevice) -> Clock:
    """Return what the calling thread knows to be done."""
    clocks = _local.__dict__.setdefault("clocks", weakref.WeakKeyDictionary())
    found: Clock = clocks.setdefault(device, {})
    return found


def _streams() -> Any:
    return _local.__dict__.setdefault("streams", weakref.WeakKeyDictionary())
