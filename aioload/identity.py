"""Identity: a name for what a function does, which changes with its code and whatever that refers to.

Made of the code itself (never of line numbers or names of files), of defaults, closures and the globals
that the code names, and so on through all functions and classes of the user's own. What is installed counts
with its name and version, values with their content; an object is what it would be pickled as. All that is
the same in another process and another run.

What a function reads while it runs (files, the environment) is no part of it. What cannot be told is named in
`doubts`: an open file that it holds, say, or code that has no bytecode.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import importlib.util
import struct
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Identity", "identity"]

_DIGEST_BYTES = 16
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BLIND = frozenset({"eval", "exec", "globals", "__import__"})  # reach what the code does not name
# of a class: says nothing about what it does, is made from what else stands there, or comes with its use
_UNTOLD = frozenset({
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__firstlineno__", "_abc_impl",
    "__slotnames__", "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__abstractmethods__", "__parameters__", "__orig_bases__",
    "__match_args__", "_value2member_map_", "_hashable_values_", "_unhashable_values_",
    "_unhashable_values_map_",
})  # fmt: skip
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Identity:
    """What a function is, as far as that can be told."""

    text: str
    """Its name, for messages."""
    digest: str
    """Of all that it is made of, 32 hexadecimal digits."""
    doubts: tuple[str, ...] = ()
    """What could not be told, and so may change without another digest; a sentence each."""

    @property
    def certain(self) -> bool:
        """Whether nothing it is made of can change without another digest."""
        return not self.doubts

    def __str__(self) -> str:
        return f"{self.text} ({self.digest[:12]})"


def identity(value: object) -> Identity:
    """Return what a function is: any callable, or any value such as the options of one.

    Args:
        value: a function, a method, a partial, an object that can be called, or a tuple of these.
    """
    walk = _Walk(frozenset(_tops(value)))
    try:
        digest = walk.value(value)
    except RecursionError:
        walk.doubt("it is nested too deeply to be looked through")
        digest = _node("too deep", _named(value).encode())
    digest = _node("identity", importlib.util.MAGIC_NUMBER, digest)
    return Identity(_named(value), digest.hex(), tuple(dict.fromkeys(walk.doubts)))


class _Walk:
    """Goes once through all that a value is made of.

    Args:
        tops: packages that are looked into wherever they lie, by name.
    """

    def __init__(self, tops: frozenset[str]) -> None:
        self.doubts: list[str] = []
        self._tops = tops
        self._open: dict[int, int] = {}  # depth of what is being looked at, and may refer to itself
        self._done: dict[int, tuple[object, bytes]] = {}  # with the object, so that its number stays its own
        self._lenient = 0  # within installed code, whose version stands for what it refers to

    def doubt(self, what: str) -> None:
        """Note what could not be told."""
        if not self._lenient:
            self.doubts.append(what)

    def value(self, value: Any) -> bytes:
        """Return the digest of any value."""
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return _node(type(value).__name__, plain(value))
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:
            return _node("itself", str(len(self._open) - self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        try:
            digest = self._compound(value)
        except RecursionError:
            raise
        except Exception as error:  # of a class that answers questions in a way of its own
            self.doubt(f"{_named(value)} cannot be looked into ({type(error).__name__}: {error})")
            digest = _node("unknown", type(value).__qualname__.encode())
        finally:
            del self._open[id(value)]
        self._done[id(value)] = value, digest
        return digest

    def _compound(self, value: Any) -> bytes:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if type(value) in (tuple, list):
            return _node(type(value).__name__, *map(self.value, value))
        if type(value) is dict:
            return _node("dict", *(self.value(part) for pair in value.items() for part in pair))
        if isinstance(value, (set, frozenset)):
            return _node("set", self.value(type(value)), *sorted(map(self.value, value)))
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, np.generic) or type(value) in (np.ndarray, np.memmap):
            return self._array(np.asarray(value))
        return self._wrapper(value) or self._object(value)

    # functions --------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> bytes:
        module = str(function.__globals__.get("__name__", ""))
        if not self._is_own(module) and _is_found(function, module):
            return _node("known function", self._home(module), function.__qualname__.encode())
        parts = [
            self._home(module),
            function.__qualname__.encode(),
            self._code(function.__code__),
            self.value(function.__defaults__),
            self.value(function.__kwdefaults__),
            *(self._cell(cell) for cell in function.__closure__ or ()),
            self.value({name: held for name, held in vars(function).items() if name != "__wrapped__"}),
        ]
        if self._is_own(module):
            parts += self._references(function)
        return _node("function", *parts)

    def _cell(self, cell: types.CellType) -> bytes:
        try:
            return self.value(cell.cell_contents)
        except ValueError:  # not filled yet
            return _node("no value")

    def _code(self, code: types.CodeType) -> bytes:
        """Return the digest of what is run, wherever it stands in its file."""
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        tables = code.co_code, code.co_exceptiontable
        consts = (self.value(const) for const in code.co_consts)
        return _node("code", *tables, repr(counts).encode(), repr(names).encode(), *consts)

    def _references(self, function: types.FunctionType) -> Iterator[bytes]:
        """Yield what the globals are that the code names, in the order of their names."""
        module = str(function.__globals__.get("__name__", ""))
        is_lenient = _is_installed(module)
        self._lenient += is_lenient
        try:
            found: dict[str, bytes] = {}
            for code in _codes(function.__code__):
                for name, path in _chains(code):
                    chain = ".".join((name, *path))
                    if chain not in found:
                        found[chain] = self._global(name, path, function)
                for name, members in _imports(code):
                    found[f"import {name} {members}"] = self._imported(name, members, function)
            for chain, digest in sorted(found.items()):
                yield _node("global", chain.encode(), digest)
        finally:
            self._lenient -= is_lenient

    def _global(self, name: str, path: tuple[str, ...], function: types.FunctionType) -> bytes:
        space: Mapping[str, Any] = function.__globals__
        if name not in space:
            if name in _BLIND:
                self.doubt(f"{_named(function)} calls {name}, which reaches what its code does not name")
            return _node("builtin or nothing")  # its name stands beside
        return self._followed(space[name], path)

    def _followed(self, value: Any, path: Iterable[str]) -> bytes:
        """Return the digest of what names lead to, through modules of the user's own."""
        steps = list(path)
        while isinstance(value, types.ModuleType) and self._is_own(value.__name__) and steps:
            step = steps.pop(0)
            if not hasattr(value, step):
                return _node("nothing")
            value = getattr(value, step)
        # what an installed module is asked for, the chain of names says
        return self.value(value)

    def _imported(self, name: str, members: tuple[str, ...], function: types.FunctionType) -> bytes:
        """Return the digest of what is imported while the function runs."""
        if name.startswith("."):
            package = str(function.__globals__.get("__package__") or "")
            name = importlib.util.resolve_name(name, package) if package else name.lstrip(".")
        if not self._is_own(name):
            return self._home(name)
        try:
            module = import_module(name)
        except Exception as error:  # whatever the user's module raises
            self.doubt(f"{_named(function)} imports {name}, which fails here ({type(error).__name__})")
            return _node("no module")
        if not members:
            return self.value(module)
        return _node("members", *(self._followed(module, (member,)) for member in members))

    # classes, modules and objects -------------------------------------------------------------------

    def _class(self, kind: type) -> bytes:
        module = _module_name(kind)
        head = self._home(module), kind.__qualname__.encode()
        if not self._is_own(module):
            return _node("class", *head)
        is_lenient = _is_installed(module)
        self._lenient += is_lenient
        try:
            bases = _node("bases", *map(self.value, kind.__bases__))
            members = (
                _node("member", name.encode(), self._member(member))
                for name, member in sorted(vars(kind).items())
                if name not in _UNTOLD
            )
            return _node("class", *head, self.value(type(kind)), bases, *members)
        finally:
            self._lenient -= is_lenient

    def _member(self, member: Any) -> bytes:
        if isinstance(member, (staticmethod, classmethod)):
            return _node(type(member).__name__, self.value(member.__func__))
        if isinstance(member, property):
            return _node("property", *map(self.value, (member.fget, member.fset, member.fdel)))
        if isinstance(member, functools.cached_property):
            return _node("cached property", self.value(member.func))
        if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return _node("slot")
        return self.value(member)

    def _module(self, module: types.ModuleType) -> bytes:
        name = module.__name__
        if self._is_own(name):
            self.doubt(
                f"the module {name} is handed on as a whole, of which only its own file is looked at; import "
                "what is used of it by name, at the top"
            )
            return _node("module", self._home(name), _content(getattr(module, "__file__", None)))
        return _node("module", self._home(name))

    def _wrapper(self, value: Any) -> bytes | None:
        """Return the digest of what stands for a function without being one; None for all else."""
        if isinstance(value, types.MethodType):
            return _node("method", self.value(value.__func__), self.value(value.__self__))
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords, vars(value)
            return _node("partial", self.value(type(value)), *map(self.value, parts))
        if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
            return self._builtin(value)
        if isinstance(value, types.MappingProxyType):
            return _node("mapping", self.value(dict(value)))
        if self._is_own(_module_name(type(value))):
            return None
        # of functools.lru_cache and numba.jit, say
        inner = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
        if not isinstance(inner, types.FunctionType):
            return None
        return _node("wrapper", self.value(type(value)), self.value(inner))

    def _builtin(self, function: Any) -> bytes:
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return _node("builtin", function.__name__.encode(), self.value(owner))
        module = function.__module__ or ""
        if self._is_own(module) and not _is_installed(module):
            self.doubt(f"{_named(function)} is compiled, so its code cannot be looked into")
        return _node("builtin", self._home(module), function.__qualname__.encode())

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        if array.dtype.hasobject:
            return _node("objects", repr(array.shape).encode(), self.value(array.tolist()))
        content = np.ascontiguousarray(array).tobytes()
        return _node("array", repr(array.dtype).encode(), repr(array.shape).encode(), content)

    def _object(self, value: Any) -> bytes:
        """Return the digest of an object: its class, and what pickle would keep of it."""
        kind = self.value(type(value))
        try:
            tensor = _tensor_parts(value)
            reduced = _reduced(value) if tensor is None else tensor
        except Exception as error:  # whatever a class raises that cannot be pickled
            self.doubt(f"{_named(value)} has a state that cannot be told ({error})")
            return _node("object", kind)
        if isinstance(reduced, str):
            module = _module_of(value, reduced)
            if not _is_library(module):
                self.doubt(f"{module}.{reduced} is kept by its name alone, so what it is made of is not seen")
            return _node("object", kind, self._home(module), reduced.encode())
        rebuild, arguments, *state = reduced
        state = [list(part) if isinstance(part, Iterator) else part for part in state]
        return _node("object", kind, self.value(rebuild), self.value(arguments), *map(self.value, state))

    # where things come from -------------------------------------------------------------------------

    def _is_own(self, module: str) -> bool:
        """Tell whether code is looked into; else its name and version stand for it."""
        return module.partition(".")[0] in self._tops or not _is_library(module)

    def _home(self, module: str) -> bytes:
        """Return what a module is called, and for others' the version."""
        name = "__main__" if module == "__mp_main__" else module
        version = _version(name.partition(".")[0]) if _is_library(module) else ""
        return f"{name} {version}".encode()


def _node(kind: str, *parts: bytes) -> bytes:
    """Return a digest of parts, each of which has its length before it, so that none runs into the next."""
    found = blake2b(kind.encode(), digest_size=_DIGEST_BYTES)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()


def _float(value: float) -> bytes:
    return struct.pack("<d", value)


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    type(Ellipsis): lambda _: b"",
    type(NotImplemented): lambda _: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: b"%x" % value,
    float: _float,
    complex: lambda value: _float(value.real) + _float(value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: value,
    bytearray: bytes,
    memoryview: bytes,
    range: lambda value: repr(value).encode(),
}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code and that of all functions within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _chains(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each global that code names, with the attributes that it asks for at once."""
    name, path = "", []
    for step in dis.get_instructions(code):
        if step.opname == "EXTENDED_ARG":
            continue
        if name and step.opname in _ATTRIBUTES:
            path.append(str(step.argval))
            continue
        if name:
            yield name, tuple(path)
        name, path = (str(step.argval), []) if step.opname in _LOADS else ("", [])


def _imports(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each module that code imports while it runs, dots before it, and the names that it takes."""
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, members = before[-2:]
            yield "." * level + str(step.argval), tuple(members or ())
        if step.opname != "EXTENDED_ARG":
            before = [*before[-1:], step.argval]


def _tops(value: Any) -> Iterator[str]:
    """Yield the packages of the functions that were given: they are looked into though they be installed."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _tops(part)
    elif isinstance(value, functools.partial):
        yield from _tops(value.func)
    elif isinstance(value, types.MethodType):
        yield from _tops(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _unless_common(str(value.__globals__.get("__name__", "")))
    elif type(value) not in _PLAIN:
        yield from _unless_common(_module_name(type(value)))


def _module_name(kind: type) -> str:
    """Return a class's module; some metaclasses of compiled code have something else there."""
    module: object = kind.__module__
    return module if isinstance(module, str) else "builtins"


def _unless_common(module: str) -> Iterator[str]:
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names and top not in (__package__, "numpy", "torch"):
        yield top


@functools.cache
def _is_library(module: str) -> bool:
    """Tell whether a module is Python's, ours, or installed; what is in no file is the user's."""
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top == __package__ or _is_installed(module)


@functools.cache
def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    origin = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    if origin is None and top and top not in sys.modules:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return False
        origin = None if spec is None else spec.origin
    return origin is not None and not _INSTALLED.isdisjoint(Path(origin).parts)


@functools.cache
def _version(top: str) -> str:
    """Return the version of a package; Python's own is in its bytecode's."""
    if top in sys.stdlib_module_names:
        return ""
    told = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(told, str):
        return told
    try:
        return metadata.version(top)
    except (metadata.PackageNotFoundError, ValueError):
        named = metadata.packages_distributions().get(top, [])
        return ", ".join(metadata.version(name) for name in sorted(set(named)))


def _content(file: str | None) -> bytes:
    try:
        return blake2b(Path(file).read_bytes()).digest() if file else b""
    except OSError:
        return b""


def _reduced(value: Any) -> Any:
    """Return what pickle keeps of an object, or its name where it keeps only that."""
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str) and not _is_found(value, _module_of(value, reduced), reduced):
        raise TypeError(f"it gives its name as {reduced}, under which something else is found")
    return reduced


def _module_of(value: Any, name: str) -> str:
    """Return the module in which something has a name, as pickle finds it; the empty text where none does."""
    module = getattr(value, "__module__", None)
    if isinstance(module, str):
        return module
    return next((each for each in list(sys.modules) if _is_found(value, each, name)), "")


def _is_found(value: Any, module: str, name: str | None = None) -> bool:
    """Tell whether something is what its name in its module stands for."""
    found: Any = sys.modules.get(module)
    for step in (name or value.__qualname__).split("."):
        found = getattr(found, step, None)
    return found is value


def _tensor_parts(value: Any) -> tuple[Any, ...] | None:
    """Return what a tensor is made of; None for all else: pickle would keep more memory than its own."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return "tensor", (str(value.dtype), tuple(value.shape), bool(value.requires_grad), content)


def _named(value: Any) -> str:
    """Return what messages call a value."""
    if isinstance(value, functools.partial):
        return f"partial of {_named(value.func)}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_named, value))
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str):
        value = type(value)
        name = value.__qualname__
    module = getattr(value, "__module__", None)
    return f"{module}:{name}" if isinstance(module, str) else name
