"""An identity is the same wherever a function runs, and another when anything that it is made of changes."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import itertools
import logging
import operator
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload import decode
from aioload.identity import Identity, identity

_NAMES = itertools.count()

SOURCE = """
import dataclasses, enum, functools, re
import numpy as np
import helper

BANDS = 64
WINDOW = np.hanning(16)
WORD = re.compile("a+")

class Scale(enum.Enum):
    HTK = 1
    SLANEY = 2

@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    bands: int = 64
    scale: Scale = Scale.HTK
    def power(self, x):
        return x ** 2

OPTIONS = Options()

def loud(x):
    return x * 2

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def outer(factor):
    def inner(sample, *, scale=1.5):
        table = {"a", "b", "c"}
        if sample["name"] in {"x", "y", "z"} and WORD.match(sample["name"]):
            return {k: v for k, v in sample.items() if k in table}
        return {"x": loud(sample["x"]) * factor * scale + BANDS + WINDOW.sum() + helper.shift(1)}
    return inner

class Mel:
    def __init__(self, bands):
        self.bands = bands
        self.names = {"one", "two", "three"}
    def __call__(self, sample):
        from helper import late
        return {"x": OPTIONS.power(sample["x"]) + self.bands + late(even(3))}

f = outer(3)
mel = Mel(80)
part = functools.partial(f, scale=2)
method = OPTIONS.power
cached = functools.lru_cache(loud)
ALL = (f, mel, part, method, cached, even, lambda x: (np.fft.rfft(x), -0.0, 1, True, ...))
"""
HELPER = "def shift(x):\n    return x + 1\n\ndef late(x):\n    return x * 3\n"


def _modules(tmp_path: Path, source: str = SOURCE, helper: str = HELPER) -> dict[str, Any]:
    """Run a user's file beside a helper module of a name of its own; return what it defines."""
    name = f"helper_{next(_NAMES)}"
    (tmp_path / f"{name}.py").write_text(helper)
    module = ModuleType(name)
    module.__file__ = str(tmp_path / f"{name}.py")
    exec(compile(helper, module.__file__, "exec"), vars(module))
    module.__name__ = "helper"  # the same in all, as it would be in another run
    for function in (module.shift, module.late):
        function.__module__ = "helper"
    sys.modules["helper"] = module
    sys.modules["mels"] = user = ModuleType("mels")
    exec(compile(source, str(tmp_path / f"mels_{name}.py"), "exec"), vars(user))
    return vars(user)


@pytest.fixture(autouse=True)
def _clean_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a test go with it."""
    for name in ("helper", "mels"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def test_an_identity_is_the_same_in_other_processes(tmp_path: Path) -> None:
    """Hash seeds, addresses and the order of sets differ between processes; identities do not."""
    (tmp_path / "mels.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text(HELPER)
    code = "import mels, aioload.identity as i; print([i.identity(each).digest for each in mels.ALL])"
    root = str(Path(__file__).parent.parent)

    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{root}", "PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "77")
    }

    assert len(printed) == 1
    assert b"'" in printed.pop()


def test_names_of_files_and_line_numbers_do_not_matter(tmp_path: Path) -> None:
    """A comment above a function, or another folder, leaves it what it was."""
    before = [identity(each) for each in _modules(tmp_path)["ALL"]]

    moved = _modules(tmp_path, "\n\n# a comment\n" + SOURCE, "# moved\n\n" + HELPER)["ALL"]

    assert [identity(each).digest for each in moved] == [each.digest for each in before]
    assert all(each.certain for each in before)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("f", "return x * 2", "return x * 3"),  # a function that it calls
        ("f", "BANDS = 64", "BANDS = 65"),  # a constant of the module
        ("f", "np.hanning(16)", "np.hamming(16)"),
        ("f", '"a+"', '"b+"'),
        ("f", "outer(3)", "outer(3.0)"),  # the closure
        ("f", "scale=1.5", "scale=1.25"),  # a default
        ("f", '"x", "y", "z"', '"x", "y", "w"'),
        ("f", 'table = {"a"', 'table = {"d"'),  # within a function within it
        ("mel", "Mel(80)", "Mel(81)"),
        ("mel", "x ** 2", "x ** 3"),  # a method of an object that it refers to
        ("mel", "Scale.HTK\n", "Scale.SLANEY\n"),
        ("mel", "n != 0", "n != 1"),  # beyond functions that call each other
        ("part", "scale=2)", "scale=4)"),
        ("method", "bands: int = 64", "bands: int = 32"),
        ("cached", "return x * 2", "return x * 3"),
    ],
)
def test_what_a_function_refers_to_is_part_of_it(tmp_path: Path, name: str, old: str, new: str) -> None:
    """A change of anything that the code reaches is another identity."""
    assert old in SOURCE
    before = identity(_modules(tmp_path)[name])

    after = identity(_modules(tmp_path, SOURCE.replace(old, new))[name])

    assert after.digest != before.digest
    assert after.text == before.text


@pytest.mark.parametrize(("name", "old", "new"), [("f", "x + 1", "x + 2"), ("mel", "x * 3", "x * 4")])
def test_modules_of_the_user_are_followed(tmp_path: Path, name: str, old: str, new: str) -> None:
    """A helper in another file counts, imported at the top or while the function runs."""
    before = identity(_modules(tmp_path)[name])

    after = identity(_modules(tmp_path, helper=HELPER.replace(old, new))[name])

    assert after.digest != before.digest
    assert before.certain


def test_what_is_not_referred_to_is_no_part(tmp_path: Path) -> None:
    """Another function of the same file may change."""
    before = identity(_modules(tmp_path)["loud"])

    after = identity(_modules(tmp_path, SOURCE.replace("BANDS = 64", "BANDS = 1"))["loud"])

    assert after == before


def test_a_function_that_has_travelled_is_the_same() -> None:
    """What cloudpickle takes apart and puts together again keeps its identity."""
    factor = np.arange(3.0)

    def travel(sample: dict[str, Any], *, offset: int = 2) -> dict[str, Any]:
        return {"x": sample["x"] * factor + offset + np.abs(factor).sum()}

    again = cloudpickle.loads(cloudpickle.dumps(travel))

    assert identity(again) == identity(travel)
    assert identity(travel).text.endswith("travel")


def test_a_copy_has_the_identity_of_the_original() -> None:
    """Equal options are equal, whoever made the objects."""
    one, other = decode.Image(size=(8, 8)), decode.Image(size=(8, 8))

    assert identity((one, re.compile("a"))) == identity((other, re.compile("a")))
    assert identity(one).digest != identity(decode.Image(size=(8, 9))).digest
    assert identity(one).certain


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.frozensets(st.integers(-5, 5), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def _exact(value: Any) -> str:
    """Return a text that differs wherever two values do, in type, too; sets in order."""
    if isinstance(value, frozenset):
        return f"frozenset{sorted(value)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_exact, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key!r}: {_exact(held)}' for key, held in value.items())})"
    return repr(value)


def _holding(value: Any) -> Callable[[], Any]:
    def hold() -> Any:
        return value

    return hold


@given(one=PLAIN, other=PLAIN)
def test_values_count_with_their_content(one: Any, other: Any) -> None:
    """Two closures are the same if, and only if, what they hold is, to the type and the sign of zero."""
    again = cloudpickle.loads(cloudpickle.dumps(one))

    same = identity(_holding(one)).digest == identity(_holding(other)).digest

    assert same == (_exact(one) == _exact(other))
    assert identity(_holding(again)) == identity(_holding(one))


@given(numbers=st.lists(st.integers(0, 3), max_size=4), dtype=st.sampled_from(["u1", "<i4", ">i4", "f8"]))
def test_arrays_count_with_type_shape_and_content(numbers: list[int], dtype: str) -> None:
    """Layout in memory does not matter, all else does."""
    array = np.array([numbers, numbers], dtype)

    digest = identity(array).digest

    assert digest == identity(np.asfortranarray(array)).digest
    others = [array.astype("i8"), array.reshape(-1), np.append(array, array[:1], 0) + 1, array.tolist()]
    assert digest not in [identity(other).digest for other in others]


class _Base(abc.ABC):
    """A class of the user's that is made of much."""

    @abc.abstractmethod
    def made(self) -> Any: ...


class _Made(_Base):
    def made(self) -> Any:
        return super().__str__(), {"q", "w", "e"}

    @functools.cached_property
    def once(self) -> int:
        return 2

    @property
    def twice(self) -> int:
        return 2 * self.once

    @classmethod
    def alike(cls) -> Any:
        return cls


class _Flags(enum.Flag):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    "value",
    [
        _Made(), _Flags.ONE | _Flags.TWO, collections.namedtuple("Pair", "a b")(1, 2), logging.getLogger("x"),
        collections.defaultdict(list, a=[1]), collections.OrderedDict(a=1), collections.Counter("aab"),
        np.random.default_rng(1), np.add, np.dtype([("a", "<f4")]), np.float32(1), operator.itemgetter("a"),
        Path("/x"), np.vectorize(abs), len, "a".upper, slice(1, 2), int | None, memoryview(b"a"), itertools,
    ],
    ids=repr,
)  # fmt: skip
def test_things_of_many_kinds_are_certain(value: Any) -> None:
    """Each is told, and a copy that has travelled between processes is the same."""
    holding = _holding(value)

    found = identity(holding)

    assert found.doubts == ()
    if not isinstance(value, memoryview):  # which does not travel
        assert identity(_holding(cloudpickle.loads(cloudpickle.dumps(value)))) == found


def test_using_a_thing_does_not_change_it() -> None:
    """Pickling a class, or adding flags, leaves notes in the class; the identity stays."""

    class Shade(enum.Flag):
        DARK = 1
        LIGHT = 2

    class Plain:
        pass

    things = (Shade, Plain)
    before = identity(things)

    cloudpickle.loads(cloudpickle.dumps(Plain()))
    Plain().__reduce_ex__(4)
    assert Shade.DARK | Shade.LIGHT

    assert "__slotnames__" in vars(Plain)
    assert identity(things) == before


def test_an_object_that_answers_with_errors_is_a_doubt() -> None:
    """Whatever a class raises when it is asked, an identity comes of it."""

    class Rude:
        def __getattribute__(self, name: str) -> Any:
            raise OSError(f"no {name}")

    found = identity(_holding(Rude()))

    assert not found.certain
    assert "OSError" in found.doubts[0] or "no __" in found.doubts[0]


def test_tensors_count_with_their_content() -> None:
    """A view is what it shows, not the memory behind it."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(6, dtype=torch.bfloat16)

    assert identity(whole[:2]) == identity(torch.arange(2, dtype=torch.bfloat16))
    assert identity(whole[:2]).digest != identity(whole[1:3]).digest
    assert identity(torch.nn.Linear(2, 2)).certain


def test_what_cannot_be_told_is_said() -> None:
    """An open file, a generator, code that evaluates text: the identity is not certain, and says why."""
    with tempfile.TemporaryFile() as file:
        doubtful: list[Identity] = [
            identity(functools.partial(print, file=file)),
            identity(_holding(letter for letter in "abc")),
            identity(lambda sample: eval("sample")),
            identity(np.frompyfunc(abs, 1, 1)),
        ]

    assert [each.certain for each in doubtful] == [False] * 4
    assert "TextIOWrapper" in doubtful[0].doubts[0] or "BufferedRandom" in doubtful[0].doubts[0]
    assert "generator" in doubtful[1].doubts[0]
    assert "eval" in doubtful[2].doubts[0]


def test_a_module_that_is_handed_on_is_a_doubt(tmp_path: Path) -> None:
    """What a function does with a whole module of the user's cannot be seen; its own file is."""
    before, after = (
        identity(_modules(tmp_path, "import helper\ndef f():\n    return [helper]\n", helper)["f"])
        for helper in (HELPER, HELPER + "\n# changed")
    )

    assert "helper" in before.doubts[0]
    assert before.digest != after.digest


def test_a_package_that_was_given_is_looked_into_wherever_it_lies(tmp_path: Path) -> None:
    """A user's own package may be installed and keep its version while its code changes."""
    digests = []
    for factor in (2, 3):
        place = tmp_path / str(factor) / "site-packages"
        place.mkdir(parents=True)
        source = textwrap.dedent(f"""
            def own(x):
                return x * {factor}

            def given(x):
                return own(x)
            """)
        (place / "installed_by_user.py").write_text(source)
        code = "import installed_by_user as m, aioload.identity as i; print(i.identity(m.given))"
        path = f"{place}:{Path(__file__).parent.parent}"
        run = [sys.executable, "-c", code]
        digests.append(subprocess.run(run, env={"PYTHONPATH": path}, capture_output=True, check=True).stdout)

    assert digests[0] != digests[1]
    assert digests[0].startswith(b"installed_by_user:given (")


def test_an_object_that_holds_itself_has_an_identity() -> None:
    """Circles end."""
    circle: list[Any] = [1]
    circle.append(circle)
    other: list[Any] = [2]
    other.append(other)

    assert identity(_holding(circle)) == identity(_holding(circle))
    assert identity(_holding(circle)).digest != identity(_holding(other)).digest
