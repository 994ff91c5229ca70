"""The floors hold: imports run down only, without circles, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import aioload
from aioload import _front

PACKAGE = Path(__file__).parent.parent / "aioload"

# Top floor first; a name stands for the module and all below it. Imports on one floor may go sideways.
FLOORS = (
    ("aioload", "aioload.__main__", "aioload._front"),
    ("aioload.cli", "aioload.integrations"),
    ("aioload.benching", "aioload.dropin", "aioload.planning"),
    ("aioload.loader",),
    (
        "aioload.course",
        "aioload.executor",
        "aioload.iterate",
        "aioload.live",
        "aioload.options",
        "aioload.pace",
        "aioload.prefetch",
        "aioload.prometheus",
        "aioload.remains",
        "aioload.watched",
    ),
    # `loader.sync()` makes a SyncLoader, which knows a loader by protocol only
    ("aioload._pipeline", "aioload.sync"),
    ("aioload.compose", "aioload.dataset", "aioload.home", "aioload.mapstyle", "aioload.packing"),
    ("aioload.foreign",),
    ("aioload.batching", "aioload.collection", "aioload.concat", "aioload.mixing", "aioload.subset"),
    ("aioload.table", "aioload.testing", "aioload._device", "aioload._workers"),
    ("aioload.storage", "aioload.shard", "aioload.decode", "aioload.collate", "aioload.digits"),
    (
        "aioload.accounts",
        "aioload.ahead",
        "aioload.blocking",
        "aioload.bytelocks",
        "aioload.cache",
        "aioload.cgroup",
        "aioload.deal",
        "aioload.diagnosis",
        "aioload.errors",
        "aioload.frames",
        "aioload.identity",
        "aioload.importing",
        "aioload.lifetime",
        "aioload.machine",
        "aioload.order",
        "aioload.part",
        "aioload.picks",
        "aioload.policy",
        "aioload.profiled",
        "aioload.ranks",
        "aioload.reason",
        "aioload.recorder",
        "aioload.report",
        "aioload.screens",
        "aioload.shares",
        "aioload.state",
        "aioload.stats",
        "aioload.target",
        "aioload.teller",
        "aioload.timeline",
        "aioload.tracing",
        "aioload.travel",
        "aioload.tree",
        "aioload.wake",
        "aioload.words",
        "aioload._version",
    ),
)

# The demo is a training script that happens to ship, transformers is given a data set of torch's kind. All
# else is delivery, to the user or to a device.
TORCH_MODULES = {
    "aioload._device.simulated",
    "aioload._device.torch_device",
    "aioload._pipeline.deliver",
    "aioload.benching.against",
    "aioload.cli.demo",
    "aioload.integrations.transformers",
}

WORKER_ENTRY = "aioload._workers.process"


@dataclass(frozen=True, slots=True)
class Import:
    """One import, wherever in the module it stands."""

    target: str
    """The module that is imported, or the one that a name is imported from."""

    for_types: bool
    """Whether it is under TYPE_CHECKING, and so never happens at run time."""


def test_imports_run_down_only() -> None:
    """No module imports from a floor above its own, not even for types or inside a function."""
    upward = [
        f"{module} -> {imported.target}"
        for module, imports in _house().items()
        for imported in imports
        if _climbs(module, imported.target)
    ]

    assert upward == []


def test_imports_have_no_circles() -> None:
    """The modules can be put in a row so that each imports only earlier ones."""
    graph = {
        module: {imported.target for imported in imports if _is_ours(imported.target)} - {module}
        for module, imports in _house().items()
    }

    row = list(graphlib.TopologicalSorter(graph).static_order())  # a CycleError would name the circle

    assert set(row) == set(graph)


def test_every_module_has_a_floor() -> None:
    """A new module is put on a floor before it is used."""
    homeless = [module for module in _house() if _floor(module) is None]

    assert homeless == []


def test_only_delivery_imports_torch() -> None:
    """Torch is imported where tensors are made, and nowhere else."""
    importers = {module for module in _house() if "torch" in _packages(module)}

    assert importers <= TORCH_MODULES


def test_workers_import_neither_torch_nor_anyio() -> None:
    """What a worker imports, and what that imports, leaves torch and the event loop out."""
    reached = _closure(WORKER_ENTRY)

    heavy = {module: _packages(module) & {"torch", "anyio", "aiofiles"} for module in reached}

    assert {module: packages for module, packages in heavy.items() if packages} == {}


@pytest.mark.parametrize("package", ["torch", "anyio", "asyncio"])
def test_a_worker_process_loads_no_event_loop(package: str) -> None:
    """What really is in a process that has imported all that a worker needs."""
    code = f"import sys, {WORKER_ENTRY}, aioload.decode; sys.exit({package!r} in sys.modules)"

    status = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode

    assert status == 0


def test_every_public_name_has_a_home() -> None:
    """What `__all__` promises is what the front door can import."""
    assert sorted(_front.HOMES) == sorted(aioload.__all__)


@pytest.mark.parametrize("package", ["torch", "PIL", "cv2", "simplejpeg", "pytest", "obstore", "aiohttp"])
def test_the_front_door_stays_light(package: str) -> None:
    """`import aioload` loads neither torch nor what decodes pictures."""
    command = [sys.executable, "-c", f"import sys, aioload; sys.exit({package!r} in sys.modules)"]

    status = subprocess.run(command, cwd=PACKAGE.parent, check=False).returncode

    assert status == 0


@pytest.mark.parametrize("package", ["obstore", "aiohttp"])
def test_local_sets_load_no_network_client(package: str) -> None:
    """What reads and writes folders imports none, though they are always installed."""
    code = f"import sys, aioload.loader, aioload.shard.writer; sys.exit({package!r} in sys.modules)"

    status = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode

    assert status == 0


def test_a_loader_loads_nothing_that_draws() -> None:
    """What draws lines on terminals is imported where one is drawn."""
    code = "import sys, aioload.loader; sys.exit('rich' in sys.modules)"

    status = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode

    assert status == 0


def test_every_module_says_what_it_knows() -> None:
    """Each module opens with a docstring."""
    silent = [module for module, path in _modules().items() if not ast.get_docstring(_parse(path))]

    assert silent == []


@functools.cache
def _modules() -> dict[str, Path]:
    """All modules of the package, by dotted name."""
    names = {
        path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in sorted(names.items())}


@functools.cache
def _house() -> dict[str, list[Import]]:
    """What each module imports."""
    return {module: list(_imports(module, path)) for module, path in _modules().items()}


def _imports(module: str, path: Path) -> Iterator[Import]:
    """Walk all statements of a module, those inside functions included."""
    tree = _parse(path)
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        for target in _targets(node, package):
            yield Import(target, for_types=id(node) in for_types)


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    """The modules one statement imports; of `from x import y` it is x.y where that is a module, else x."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        source = ".".join([*parents, *filter(None, [node.module])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            yield inner if inner in _modules() else source


def _packages(module: str) -> set[str]:
    """The top-level packages that a module imports at run time."""
    return {imported.target.partition(".")[0] for imported in _house()[module] if not imported.for_types}


def _closure(module: str) -> set[str]:
    """A module and all of ours that it needs at run time."""
    reached: set[str] = set()
    ahead = {module}
    while ahead:
        reached |= ahead
        ahead = {
            imported.target
            for name in ahead
            for imported in _house()[name]
            if _is_ours(imported.target) and not imported.for_types
        } - reached
    return reached


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE.name


def _climbs(module: str, target: str) -> bool:
    """Whether an import leads to a higher floor; another test asks that each module has one."""
    own, other = _floor(module), _floor(target)
    return own is not None and other is not None and other < own


def _floor(module: str) -> int | None:
    """The number of a module's floor, 0 at the top; the front door is only itself, not all below it."""
    for number, names in enumerate(FLOORS):
        if module in names or any(module.startswith(f"{name}.") for name in names if name != PACKAGE.name):
            return number
    return None


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))
