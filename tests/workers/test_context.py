"""Context: workers are small, know nothing of the main script, and go when their parent goes."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import aioload
from aioload._workers.context import WorkerContext
from aioload._workers.locks import OneProcessLock

# What these tests ask of a worker is Python's own `eval`, which it finds without any module of ours.
SCRIPT = """
    import os, sys, threading
    from concurrent.futures import ProcessPoolExecutor
    from aioload._workers.arena import Arena, ArenaHandle
    from aioload._workers.context import WorkerContext
    from aioload._workers.space import Span
    from aioload._workers.jobs import Recipe
    from aioload._workers.process import start_worker
    from aioload._workers.trace import StackFile
    import cloudpickle

    recipe = cloudpickle.dumps(Recipe(None, (), None, None, 0, False, False, False))
    arena = Arena(1 << 20)
    mark, stacks = Span(0, 64), [StackFile() for _ in range(2)]
    starts = [(start_worker, (ArenaHandle(arena), mark, recipe, file.handle())) for file in stacks]
    pools = [ProcessPoolExecutor(1, WorkerContext(), *start) for start in starts]
    pids = [pool.submit(os.getpid).result() for pool in pools]
"""


@pytest.fixture
def worker() -> Iterator[ProcessPoolExecutor]:
    """One process of our context."""
    with ProcessPoolExecutor(1, WorkerContext()) as pool:
        yield pool


def run_script(path: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code as a script of its own, which has no main guard."""
    path.write_text(textwrap.dedent(SCRIPT) + textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, *(arguments or (str(path),))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


def wait_for_end(pids: list[int], seconds: float) -> list[int]:
    """Return which of the processes still run after so many seconds."""
    still = []
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not select.select([fd], [], [], seconds)[0]:
            still.append(pid)
        os.close(fd)
    return still


def test_a_worker_imports_no_main_module(worker: ProcessPoolExecutor) -> None:
    """What runs as `__main__` here is not run again there."""
    asked = "vars(__import__('sys').modules['__main__']).get('__file__')"

    theirs = worker.submit(eval, asked).result()

    assert theirs != vars(sys.modules["__main__"])["__file__"]


def test_a_worker_imports_no_torch(worker: ProcessPoolExecutor) -> None:
    """A worker starts fast and small: torch comes only with user code that imports it."""
    import torch  # noqa: F401 - it is here, as in any training script

    found = worker.submit(eval, "'torch' in __import__('sys').modules").result()

    assert not found


def test_a_worker_has_what_it_needs_before_it_is_asked(worker: ProcessPoolExecutor) -> None:
    """The server has imported the packages of others, so that a start is a fork and little more."""
    names = ["numpy", "numpy.random", "cloudpickle", "google_crc32c", "concurrent.futures.process"]

    found = worker.submit(eval, f"set({names}) <= set(__import__('sys').modules)").result()

    assert found


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel tells no private memory")
def test_a_worker_with_numpy_and_pillow_is_small(worker: ProcessPoolExecutor) -> None:
    """Before its first record a worker holds less than 45 MB of its own."""
    worker.submit(eval, "__import__('PIL.Image', fromlist=['x']).init()").result()

    rollup = worker.submit(eval, "open('/proc/self/smaps_rollup').read()").result()

    private = sum(map(int, re.findall(r"Private_(?:Clean|Dirty): +(\d+) kB", rollup)))
    assert private < 45 << 10


def test_processes_are_told_and_ended_by_force(worker: ProcessPoolExecutor) -> None:
    """The context knows what it has started, and can end it whatever it does."""
    context: WorkerContext = worker._mp_context  # type: ignore[attr-defined]  # the executor hides it
    pid = worker.submit(os.getpid).result()

    context.kill()

    assert [process.pid for process in context.processes] == [pid]
    assert wait_for_end([pid], 5) == []


def test_ending_by_force_passes_over_what_never_started() -> None:
    """A process that was made and not started, and one that has ended, are no trouble."""
    context = WorkerContext()
    ended, never = context.Process(target=os.getpid), context.Process(target=os.getpid)
    ended.start()
    ended.join()

    context.kill()

    assert (ended.exitcode, never.pid) == (0, None)


@pytest.mark.parametrize("way", ["file", "command", "stdin"])
def test_a_script_without_a_main_guard_works(way: str, tmp_path: Path) -> None:
    """Workers do not run the script again, wherever it came from."""
    code = "[pool.shutdown() for pool in pools]; print('once', len(set(pids)))"
    text = textwrap.dedent(SCRIPT) + code

    ways = {
        "file": (),
        "command": ("-c", text),
        "stdin": ("-c", "import sys; exec(open(sys.argv[1]).read())"),
    }
    arguments = (*ways[way], str(tmp_path / "script.py")) if way == "stdin" else ways[way]
    done = run_script(tmp_path / "script.py", code, *arguments)

    assert (done.stdout, done.returncode) == ("once 2\n", 0), done.stderr


def test_workers_go_when_their_parent_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the parent leaves no worker, not even one in the middle of a job."""
    code = """
        pools[0].submit(eval, "__import__('threading').Event().wait()")
        print(*pids, flush=True)
        os.kill(os.getpid(), 9)
    """

    done = run_script(tmp_path / "script.py", code)

    pids = [int(pid) for pid in done.stdout.split()]
    assert (done.returncode, len(pids)) == (-signal.SIGKILL, 2), done.stderr
    assert wait_for_end(pids, 10) == []


def test_ctrl_c_is_the_parents(tmp_path: Path) -> None:
    """An interruption of the whole group ends no worker: the parent decides."""
    code = """
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        [os.kill(pid, signal.SIGINT) for pid in pids]
        print(pids == [pool.submit(os.getpid).result() for pool in pools])
        [pool.shutdown() for pool in pools]
    """

    done = run_script(tmp_path / "script.py", code)

    assert (done.stdout, done.stderr) == ("True\n", "")


def test_workers_see_no_device(tmp_path: Path) -> None:
    """A worker never holds a context on an accelerator."""
    code = """
        print(repr(pools[0].submit(os.getenv, "CUDA_VISIBLE_DEVICES").result()))
        [pool.shutdown() for pool in pools]
    """

    done = run_script(tmp_path / "script.py", code)

    assert done.stdout == "''\n"


def test_workers_use_the_programs_own_aioload(tmp_path: Path) -> None:
    """A folder named aioload in the working directory is not taken for the package."""
    (tmp_path / "aioload").mkdir()
    (tmp_path / "aioload" / "__init__.py").write_text("raise ImportError('another aioload')")
    root = Path(aioload.__file__).parent.parent
    script = (
        f"import sys; sys.path[0] = {str(root)!r}\n" + textwrap.dedent(SCRIPT) + "\nprint(len(set(pids)))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (ended.stdout, ended.stderr) == ("2\n", "")


def test_several_workers_of_one_executor_share_their_locks() -> None:
    """A queue that several processes read from has a lock that is the same in all of them."""
    with ProcessPoolExecutor(3, WorkerContext(3)) as pool:
        answers = list(pool.map(len, ["x" * number for number in range(600)]))

    assert answers == list(range(600))
    assert not isinstance(WorkerContext(3).Lock(), OneProcessLock)
    assert isinstance(WorkerContext().Lock(), OneProcessLock)


def _run_elsewhere(tmp_path: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a script of one folder in another, which has modules of these names that cannot be imported."""
    script, cwd = tmp_path / "program" / "script.py", tmp_path / "cwd"
    script.parent.mkdir()
    cwd.mkdir()
    for name in names:
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_text("raise RuntimeError('not the one that is meant')")
    script.write_text(
        "import sys, aioload\n"
        "with aioload.Writer(sys.argv[1], fields={'n': 'int'}) as writer:\n"
        "    [writer.write({'n': n}) for n in range(40)]\n"
        "with aioload.Loader(sys.argv[1], batch_size=20, num_workers=1).sync() as loader:\n"
        "    print([len(batch['n']) for batch in loader], loader.stats().restarts)\n"
    )
    return subprocess.run(
        [sys.executable, str(script), str(tmp_path / "set")],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(aioload.__file__).parents[1])},
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    "names", [["resource.py"], ["json/__init__.py"], ["numpy.py"], ["aioload/__init__.py"], []]
)
def test_modules_of_the_working_directory_are_not_taken(tmp_path: Path, names: list[str]) -> None:
    """A program of another folder never sees them, and so workers must not."""
    done = _run_elsewhere(tmp_path, names)

    assert (done.stdout, done.stderr) == ("[20, 20] 0\n", "")


def test_the_server_finds_the_very_package() -> None:
    """Where it is installed, or lies in the working directory or on PYTHONPATH."""
    found = subprocess.run(
        [sys.executable, "-c", "from aioload._workers import context; print(context._is_found())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(aioload.__file__).parents[1])},
        check=True,
    )

    assert found.stdout == "True\n"
