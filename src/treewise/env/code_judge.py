"""A test in this process, the program under test in another one; only values go between them.

    test: assert f([1, 2]) == 3          ──call f, [1, 2]──▶  program: def f(numbers): …
          knows the 3, can't be touched  ◀──────── 3 ───────  knows the arguments only

This file is itself run in the sandbox, and imports nothing of treewise. A program can't win by what it does to its own
process: end it, print a word, replace `assert`, `check` or a built-in, look into its caller. Plain values are copied.
An object of another kind stays where it is, and the test gets a stand-in, whose methods are called over there; it is
equal to no value, whatever its class says.

stdin: ten digits, the length of the first JSON object, {"program", "imports"}; it; then {"setup", "test", "entry"}.
stdout: one JSON object, {"passed", "ran", "why"} or, where the test itself is at fault, {"broken"}. "ran" says that the
program could be imported.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import struct
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

_LARGEST = 2**26  # bytes of a value
_VALUES: dict[str, Any] = {
    kind.__name__: kind for kind in (date, datetime, time, timedelta, timezone, Decimal, Fraction)
}
_CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, bytearray)}
_BASES: tuple[Any, ...] = (dict, *_CONTAINERS.values(), int, float, str, bytes, complex)
_CHANGEABLE = (list, dict, set, bytearray)


# Not for a test's own `except Exception`.
class Lost(BaseException):
    """The program's process has ended, or says what makes no sense."""


class Unfit(BaseException):
    """The test hands over something that can't leave its process."""


# Values on their way: JSON, with the kind where JSON doesn't have it.


def pack(value: Any, refer: Callable[[Any], Any]) -> Any:
    """What stands for a value. `refer` says it for an object that stays where it is."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is type and _built_in(value):
        return ["built-in", value.__name__]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is _CONTAINERS.get(kind.__name__):
        return [kind.__name__, [pack(one, refer) for one in value]]
    if kind is dict:
        return ["dict", [[pack(key, refer), pack(one, refer)] for key, one in value.items()]]
    if kind is _VALUES.get(kind.__name__):
        return [kind.__name__, [pack(one, refer) for one in value.__reduce__()[1]]]
    for base in _BASES:  # a Counter is a dictionary, a named tuple a tuple
        if isinstance(value, base):
            return pack(base(value), refer)
    if hasattr(kind, "__float__"):  # a number of another library
        number = float(value)
        return int(number) if number.is_integer() else number
    return refer(value)


def _built_in(thing: Any) -> bool:
    return vars(builtins).get(thing.__name__) is thing


def unpack(packed: Any, find: Callable[[Any], Any]) -> Any:
    """The value. `find` has the objects that `refer` spoke of."""
    if not isinstance(packed, list):
        return packed
    name, *parts = packed
    if name == "bytes":
        return bytes.fromhex(*parts)
    if name == "built-in":
        return vars(builtins)[parts[0]]
    if name in ("complex", "range"):
        return getattr(builtins, name)(*parts)
    if name == "dict":
        return {unpack(key, find): unpack(one, find) for key, one in parts[0]}
    if name in _CONTAINERS:
        return _CONTAINERS[name](unpack(one, find) for one in parts[0])
    if name in _VALUES:
        return _VALUES[name](*(unpack(one, find) for one in parts[0]))
    return find(parts)


def send(descriptor: int, message: Any) -> None:
    """Write a message whole."""
    payload = json.dumps(message).encode()
    left = memoryview(struct.pack("=Q", len(payload)) + payload)
    while left:
        left = left[os.write(descriptor, left) :]


def receive(descriptor: int) -> Any:
    """The next message. Raises Lost."""
    (size,) = struct.unpack("=Q", read(descriptor, 8))
    if size > _LARGEST:
        raise Lost(f"the program returned {size} bytes")
    return json.loads(read(descriptor, size))


def read(descriptor: int, size: int) -> bytes:
    """So many bytes. Raises Lost."""
    found = bytearray()
    while len(found) < size:
        chunk = os.read(descriptor, min(size - len(found), 65536))
        if not chunk:
            raise Lost("the program ended before the test did")
        found += chunk
    return bytes(found)


# The program's side


def serve(program: str, imports: str, asked: int, answers: int) -> None:
    """Run the program as a module, then do what the test asks for."""
    import linecache
    import operator
    import traceback

    module = types.ModuleType("program")
    sys.modules["program"] = module
    linecache.cache["program.py"] = (len(program), None, program.splitlines(keepends=True), "program.py")
    objects: list[Any] = []
    numbers: dict[int, int] = {}

    def refer(thing: Any) -> Any:
        if id(thing) not in numbers:
            numbers[id(thing)] = len(objects)
            objects.append(thing)
        return ["object", numbers[id(thing)], type(thing).__name__]

    def names(wanted: list[str]) -> dict[str, Any]:
        return {name: vars(module)[name] for name in wanted if name in vars(module)}

    def start() -> None:
        exec(imports, vars(module))
        exec(compile(program, "program.py", "exec"), vars(module))

    does: dict[str, Callable[..., Any]] = {
        "start": start, "names": names, "call": lambda what, given, named: what(*given, **named), "get": getattr,
        "set": setattr, "items": list, "item": operator.getitem, "len": len, "eq": operator.eq, "bool": bool,
        "contains": operator.contains, "str": str,
    }  # fmt: skip
    while True:
        what, packed = receive(asked)
        try:
            arguments = unpack(packed, lambda parts: objects[parts[0]])
            result = does[what](*arguments)
            given = arguments[1] if what == "call" else ()
            changed = [one if isinstance(one, _CHANGEABLE) else None for one in given]
            reply = ["returned", pack(result, refer), pack(changed, refer)]
        except BaseException as error:  # whatever the program does
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
                frames = frames.tb_next
            if frames is not None or what == "start":
                traceback.print_exception(type(error), error, frames)
            reply = ["raised", type(error).__name__, str(error)]
        send(answers, reply)


# The test's side


class Link:
    """Asks the program's process."""

    def __init__(self, ask: int, answers: int) -> None:
        self._ask, self._answers = ask, answers
        self._known: dict[int, Object] = {}

    def __call__(self, do: str, *arguments: Any) -> Any:
        """What it returns, or an exception as it raised it. Raises Lost, Unfit."""
        try:
            message = [do, pack(list(arguments), _number)]
        except Exception as error:  # it is the test's own value
            raise Unfit(f"the test gives the program what can't be copied: {error}") from None
        try:
            send(self._ask, message)
            what, first, second = receive(self._answers)
            if what == "returned":
                result, changed = unpack(first, self._find), unpack(second, self._find)
        except Exception as error:  # it is the program's value
            raise Lost(f"the program returned what is no value: {error}") from None
        if what != "returned":
            kind = getattr(builtins, str(first), None)
            usual = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
            raise kind(second) if usual else RuntimeError(f"{first}: {second}")  # type: ignore[misc]
        for mine, theirs in zip(arguments[1] if do == "call" else (), changed, strict=False):
            if type(mine) is type(theirs) and isinstance(mine, _CHANGEABLE):  # what a function did to its arguments
                mine.clear()
                mine.extend(theirs) if isinstance(mine, list | bytearray) else mine.update(theirs)
        return result

    def _find(self, parts: Any) -> Object:
        return self._known.setdefault(parts[0], Object(self, parts[0], str(parts[1])))


class Object:
    """Stands for an object of the program."""

    def __init__(self, link: Link, number: int, name: str) -> None:
        self.__dict__.update(_link=link, _number=number, _name=name)

    def __getattr__(self, name: str) -> Any:
        return self._link("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link("set", self, name, value)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._link("call", self, list(given), named)

    def __eq__(self, other: object) -> Any:
        return self._link("eq", self, other) if isinstance(other, Object) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._number)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._link("items", self))

    def __getitem__(self, place: Any) -> Any:
        return self._link("item", self, place)

    def __contains__(self, one: Any) -> bool:
        return bool(self._link("contains", self, one))

    def __len__(self) -> int:
        return int(self._link("len", self))

    def __bool__(self) -> bool:
        return bool(self._link("bool", self))

    def __deepcopy__(self, memo: Any) -> Object:
        return self

    def __str__(self) -> str:
        return str(self._link("str", self))

    def __repr__(self) -> str:
        return f"<{self._name} of the program>"


def _number(thing: Any) -> Any:
    if isinstance(thing, Object):
        return ["object", thing._number]
    if isinstance(thing, types.BuiltinFunctionType) and _built_in(thing):
        return ["built-in", thing.__name__]
    raise Unfit(f"the test gives the program a {type(thing).__name__}, which can't be copied")


def judge(link: Link, setup: str, test: str, entry: str) -> dict[str, Any]:
    """Whether the program passes. `entry`: the name of its function, "" if nobody says it."""
    try:
        code = [compile(text, where, "exec") for text, where in ((setup, "setup"), (test, "test"))]
        nodes = [node for text in (setup, test) for node in ast.walk(ast.parse(text))]
    except SyntaxError as error:
        return {"broken": f"the test is no Python: {error}"}
    modules = {
        node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    } & sys.stdlib_module_names
    ran = False
    try:
        link("start")
        ran = True
        namespace = link("names", sorted(_asked_for(nodes, entry) - modules))
        namespace.update((name, importlib.import_module(name)) for name in modules)
        for part in code:
            exec(part, namespace)
    except Unfit as error:
        return {"broken": str(error)}
    except BaseException as error:  # the test says so, in any way it likes
        return {"passed": False, "ran": ran, "why": f"{type(error).__name__}: {error}".removesuffix(": ")[:2000]}
    return {"passed": True, "ran": True, "why": ""}


def _asked_for(nodes: Sequence[ast.AST], entry: str) -> set[str]:
    """Names that the program has to define. A built-in is not the program's to replace, unless it is the function in
    question, or the test asks for nothing else: there are problems whose function is called sum."""
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return (names - own - vars(builtins).keys()) | ({entry} & names) or names


def main() -> None:
    """Start the program's process before the test is read, so that nothing of the test is in it."""
    report = os.dup(1)
    os.dup2(2, 1)  # what program and test print
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    first = json.loads(read(0, int(read(0, 10))))
    asked, answers = os.pipe(), os.pipe()
    if os.fork() == 0:
        for end in (report, asked[1], answers[0]):
            os.close(end)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            serve(first["program"], first["imports"], asked[0], answers[1])
        finally:
            os._exit(0)
    for end in (asked[0], answers[1]):
        os.close(end)
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # others of this user can't look into this process any more
    with os.fdopen(0, "rb", closefd=False) as file:
        second = json.load(file)
    verdict = judge(Link(asked[1], answers[0]), **second)
    os.write(report, json.dumps(verdict).encode())
    os._exit(0)  # threads and atexit are the test's


if __name__ == "__main__":
    main()
