"""Running: tasks handed to whoever makes shards, again where they are lost, and the shards made one set."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any, TypeVar

from ..errors import AioloadError, SampleError, WorkerError
from ..importing import pickled
from ..shard.index import join_footers, make_manifest, render_index
from .items import Unreadable
from .packer import PackReport, refused
from .tasks import Job, Made, ShardTask, make
from .workplace import Workplace

__all__ = ["Crew", "ask", "finish", "notes_of", "report_of", "run"]

T = TypeVar("T")

_LOOK_SECONDS = 5.0  # between two looks whether anybody is still there
_MOST_TRIES = 3  # of a task whose process dies: by then it is the task


class Crew:
    """Who makes the shards; close it when done.

    Args:
        start: calls them in; again, where all were lost.
        stop: ends what they are at, and lets them go.
        width: tells how many tasks they should have at once.
        check: raises a `WorkerError` if tasks will never be done; called now and then while waiting.
        elsewhere: whether they may not see what is seen here.
    """

    def __init__(
        self,
        start: Callable[[], Executor],
        stop: Callable[[Any], object],
        width: Callable[[], int],
        check: Callable[[], object] = int,
        *,
        elsewhere: bool = False,
    ) -> None:
        self.width = width
        self.check = check
        self.elsewhere = elsewhere
        self._start = start
        self._stop = stop
        self._executor: Executor | None = None

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Hand over a task.

        Raises:
            BrokenExecutor: they are lost.
        """
        if self._executor is None:
            self._executor = self._start()
        return self._executor.submit(function, *arguments)

    def close(self) -> None:
        """Let all go; others come with the next task. Twice is free."""
        executor, self._executor = self._executor, None
        if executor is not None:
            self._stop(executor)


def run(
    job: Job,
    tasks: Iterable[ShardTask],
    crew: Crew,
    noun: str,
    progress: Callable[[int, int], object] | None = None,
) -> list[Made]:
    """Have all shards made.

    Args:
        job: what is the same for all.
        tasks: in the order in which they are begun.
        crew: who makes them.
        noun: what messages call an item.
        progress: called after each shard with its records and bytes.

    Returns:
        The shards, in the order in which they came.

    Raises:
        SampleError: a record is bad, and none may be left out.
        WorkerError: processes died again and again over one task, or all were lost.
        AioloadError: a task failed.
    """
    waiting, tries, shards = deque(tasks), Counter[int](), list[Made]()
    payload = pickled(job)
    running: dict[Future[Made], ShardTask] = {}
    while waiting or running:
        lost = _submit(crew, payload, waiting, running)
        for future in () if lost else _done(crew, running):
            try:
                made = future.result()
            except BrokenExecutor:
                lost = True
            except AioloadError as error:
                if crew.elsewhere:
                    raise _placed(error) from error
                raise
            except Exception as error:  # of the engine that was called in
                raise _failed(running[future], error) from error
            else:
                task = running.pop(future)
                if made.footer is None:
                    raise refused(made.unreadable, noun)
                shards.append(made)
                if progress is not None:
                    progress(task.size, made.file_bytes)
        if lost:
            tries.update(task.number for task in running.values())
            _check_tries(running.values(), tries)
            waiting.extendleft(sorted(running.values(), key=lambda task: -task.number))
            running.clear()
            crew.close()
    return shards


def ask(crew: Crew, function: Callable[..., T], *arguments: Any) -> T:
    """Return what one of the crew answers.

    Raises:
        WorkerError: it died, or was lost.
    """
    try:
        (future,) = _done(crew, [crew.submit(function, *arguments)])
        return future.result()
    except AioloadError as error:
        if crew.elsewhere:
            raise _placed(error) from error
        raise
    except Exception as error:  # of the engine that was called in
        crew.close()
        raise WorkerError(f"looking at the first records failed: {_told(error)}") from error


def _submit(
    crew: Crew, payload: bytes, waiting: deque[ShardTask], running: dict[Future[Made], ShardTask]
) -> bool:
    """Hand over as many tasks as there are hands; tell whether the hands are gone."""
    width = crew.width()
    while waiting and len(running) < width:
        try:
            running[crew.submit(make, payload, waiting[0])] = waiting[0]
        except BrokenExecutor:
            return True
        waiting.popleft()
    return False


def _done(crew: Crew, futures: Iterable[Future[T]]) -> set[Future[T]]:
    """Wait for at least one, as long as there is hope."""
    while not (done := wait(futures, _LOOK_SECONDS, FIRST_COMPLETED).done):
        crew.check()
    return done


def _check_tries(tasks: Iterable[ShardTask], tries: Counter[int]) -> None:
    for task in tasks:
        if tries[task.number] >= _MOST_TRIES:
            raise WorkerError(
                f"a process died, perhaps for want of memory, each of {_MOST_TRIES} times that shard "
                f"{task.number} (records {task.first} to {task.stop}) was being made; try fewer workers, or "
                "look for a record that ends the process"
            )


def _failed(task: ShardTask, error: Exception) -> WorkerError:
    return WorkerError(
        f"shard {task.number} (records {task.first} to {task.stop}) could not be made: {_told(error)}"
    )


def _placed(error: AioloadError) -> AioloadError:
    """Return the error of a worker elsewhere, which may not see what is seen here."""
    if isinstance(error, SampleError | WorkerError):
        return type(error)(str(error), **error.facts)
    hint = "that is what a worker sees; all workers must see source and destination, by the same paths"
    return type(error)(f"{error} ({hint})", **error.facts)


def _told(error: Exception) -> str:
    """Return what an engine said, and what helps."""
    if isinstance(error, CancelledError):  # without a word
        return "the scheduler was lost, or has let go of it; what is done is kept for another run"
    if isinstance(error, ImportError):
        return f"{error}; install it where the workers are, or start them with its folder in PYTHONPATH"
    return f"{type(error).__name__}: {error}"


def finish(place: Workplace, made: Sequence[Made], metadata: Any, noun: str) -> tuple[Unreadable, ...]:
    """Make a set of all shards.

    Args:
        place: where they are.
        made: all of them, in any order.
        metadata: of the set.
        noun: what messages call an item.

    Returns:
        What was left out, in order.

    Raises:
        SampleError: nothing is left.
    """
    row = sorted(made, key=lambda each: each.task.number)
    unreadable = tuple(bad for each in row for bad in each.unreadable)
    footers = [footer for footer in (each.footer for each in row) if footer is not None]
    if unreadable and not sum(len(footer.ends) for footer in footers):
        raise refused(unreadable, noun)
    index = join_footers(footers, [each.file_bytes for each in row])
    rendered = render_index(index)
    place.finish(index.shards, rendered, make_manifest(index, rendered, metadata).render())
    return unreadable


def report_of(
    made: Sequence[Made], seconds: float, unreadable: tuple[Unreadable, ...], notes: tuple[str, ...]
) -> PackReport:
    """Return what is told of a set that was made of such shards."""
    records = sum(len(each.footer.ends) for each in made if each.footer is not None)
    return PackReport(records, sum(each.file_bytes for each in made), len(made), seconds, unreadable, notes)


def notes_of(made: Sequence[Made]) -> Iterator[str]:
    """Yield what is to be said of shards that were there."""
    there = sum(each.was_there for each in made)
    if there:
        yield f"{there} of {len(made)} shards were there already, from a run that was stopped, and right"
