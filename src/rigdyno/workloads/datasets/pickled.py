"""Reads pickled dictionaries of lists and arrays without executing anything from the file.

A pickle is a program for a small stack machine. This is that machine without its dangerous half: names of classes and
functions stay names, and only the few calls that numpy arrays need are implemented. Everything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from rigdyno.base.errors import BadValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK_BYTES = 2**24

_MOST_OPERATIONS = 10_000_000  # limit; CIFAR-100's file has 0.4 million


@dataclass(frozen=True)
class Name:
    """The name of a function or class that unpickling would import."""

    module: str
    name: str


@dataclass
class Array:
    """An array of bytes."""

    values: NDArray[np.uint8] | None = None  # None until its state is read


@dataclass(frozen=True)
class Dtype:
    code: str


class Refused(Exception):
    """The file contains an operation that no data set needs."""


def read_pickle(stream: IO[bytes], what: str) -> Any:
    """Return the pickled object; numpy arrays of bytes become `Array`. `what` is the file's name, for messages."""
    try:
        return _Machine(stream).run()
    except Refused as error:
        raise BadValue(
            f"{what} was not read: it contains {error}, which no data set needs; nothing in it was executed"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError, OverflowError) as error:
        raise BadValue(
            f"{what} isn't a complete pickled data set: {' '.join(str(error).split()) or 'it ends early'}"
        ) from None


class _Machine:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # the stack before each mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(_MOST_OPERATIONS):
            code = self._stream.read(1)
            if not code:
                raise EOFError("it ends without an end mark")
            operation = pickletools.code2op.get(code.decode("latin-1"))  # type: ignore[attr-defined]
            if operation is None:
                raise ValueError(f"{code!r} isn't a pickle operation")
            if operation.name == "STOP":
                return self._stack[-1]
            self._execute(operation)
        raise ValueError("it has more operations than a data set could need")

    def _execute(self, operation: Any) -> None:
        name = operation.name
        if name in _LONG:
            self._stack.append(self._read_long(_LONG[name]))
            return
        argument = operation.arg.reader(self._stream) if operation.arg is not None else None
        if name in _VALUES:
            self._stack.append(_VALUES[name]() if argument is None else argument)
        elif name in _MEMOIZING:
            self._memo[len(self._memo) if argument is None else int(argument)] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument or 0)])
        elif name not in _IGNORED:
            action = _ACTIONS.get(name)
            if action is None:
                raise Refused(f"the operation {name}")
            action(self, argument)

    def _read_long(self, length_bytes: int) -> bytes:
        """Read a long value piece by piece, so that a wrong length doesn't allocate memory."""
        left = int.from_bytes(self._stream.read(length_bytes), "little")
        value = bytearray()
        while left and (piece := self._stream.read(min(left, _CHUNK_BYTES))):
            value += piece
            left -= len(piece)
        if left:
            raise EOFError(f"{left:,} bytes are missing")
        return value  # type: ignore[return-value]  # never changed, and a copy would double the peak memory

    def _mark(self, _: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._marked.pop()
        return values

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("a tuple has fewer members than it should")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise Refused("an append to something that isn't a list")
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise Refused("an item for something that isn't a dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[bytes(key) if isinstance(key, bytearray) else key] = value

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Name(_text(module), _text(name)))

    def _call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Name) or function not in _CALLS:
            called = f"{function.module}.{function.name}" if isinstance(function, Name) else "something else"
            raise Refused(f"a call of {called}")
        self._stack.append(_CALLS[function](*arguments))

    def _build(self, _: Any) -> None:
        state, thing = self._stack.pop(), self._stack[-1]
        if isinstance(thing, Array):
            _, shape, dtype, fortran, values = state
            thing.values = _make_array(values, dtype, shape, "F" if fortran else "C")
        elif not isinstance(thing, Dtype):  # the byte order of one byte doesn't matter
            raise Refused("a state for something that isn't an array")

    def _pop_two(self) -> list[Any]:
        value = self._stack.pop()
        return [self._stack.pop(), value]


def _text(value: Any) -> str:
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else str(value)


def _make_array(values: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[np.uint8]:
    import numpy as np

    if not isinstance(dtype, Dtype) or dtype.code not in ("u1", "|u1", "B", "uint8"):
        raise Refused(f"an array of {dtype.code if isinstance(dtype, Dtype) else 'objects'}")
    raw = values.encode("latin-1") if isinstance(values, str) else values
    return np.frombuffer(raw, dtype=np.uint8).reshape([int(size) for size in shape], order=_text(order))  # type: ignore[call-overload,no-any-return]


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Replace `_codecs.encode`, with which Python 3 pickles bytes for Python 2."""
    if _text(encoding) not in ("latin1", "latin-1"):
        raise Refused(f"the encoding {_text(encoding)}")
    return _text(text).encode("latin-1")


def _calls() -> Iterator[tuple[Name, Callable[..., Any]]]:
    for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
        yield Name(f"{core}.multiarray", "_reconstruct"), lambda *_: Array()
        yield Name(f"{core}.numeric", "_frombuffer"), lambda *given: Array(_make_array(*given))
    yield Name("numpy", "dtype"), lambda code, *_: Dtype(_text(code))
    yield Name("_codecs", "encode"), _encode


_CALLS = dict(_calls())

_LONG = {  # values that may be large, and the number of bytes of their length
    "BINSTRING": 4, "SHORT_BINSTRING": 1, "BINBYTES": 4, "SHORT_BINBYTES": 1, "BINBYTES8": 8, "BYTEARRAY8": 8,
}  # fmt: skip

_VALUES: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None, "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False, "BININT": int, "BININT1": int, "BININT2": int, "LONG1": int, "BINFLOAT": float,
    "BINUNICODE": str, "SHORT_BINUNICODE": str,
}  # fmt: skip

_MEMOIZING = ("BINPUT", "LONG_BINPUT", "MEMOIZE")

_IGNORED = ("PROTO", "FRAME")

_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "TUPLE": lambda machine, _: machine._push(tuple(machine._pop_to_mark())),
    "TUPLE1": lambda machine, _: machine._tuple(1),
    "TUPLE2": lambda machine, _: machine._tuple(2),
    "TUPLE3": lambda machine, _: machine._tuple(3),
    "APPEND": lambda machine, _: machine._append([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._pop_to_mark()),
    "SETITEM": lambda machine, _: machine._set(machine._pop_two()),
    "SETITEMS": lambda machine, _: machine._set(machine._pop_to_mark()),
    "GLOBAL": lambda machine, pair: machine._stack.append(Name(*str(pair).split(" ", 1))),
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._call,
    "BUILD": _Machine._build,
}
