"""Reads dictionaries of lists and arrays that somebody pickled, without running anything that the file asks for.

Pickles are programs for a small machine. This is that machine without its dangerous half: names of classes and
functions stay names, and the few calls that numpy's arrays need are answered here. Everything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from rigdyno.errors import BadValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK_BYTES = 2**24
_MOST_OPERATIONS = 10_000_000  # CIFAR-100's file has 0.4 million


@dataclass(frozen=True)
class Name:
    """Of something that the file would have had imported."""

    module: str
    name: str


@dataclass
class Array:
    """Of bytes, once its state is known."""

    values: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Dtype:
    code: str


class Refused(Exception):
    """What the file asks for isn't needed to hold a data set."""


def read_pickle(stream: IO[bytes], what: str) -> Any:
    """What was pickled: of numpy arrays those of bytes, as such. `what`: the file's name, for messages."""
    try:
        return _Machine(stream).run()
    except Refused as error:
        raise BadValue(
            f"{what} was not read: it asks for {error}, which no data set needs; nothing of it was run"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError, OverflowError) as error:
        raise BadValue(
            f"{what} is no whole pickled data set: {' '.join(str(error).split()) or 'it breaks off'}"
        ) from None


class _Machine:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # what lay there before each mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(_MOST_OPERATIONS):
            code = self._stream.read(1)
            if not code:
                raise EOFError("it ends before its end is marked")
            operation = pickletools.code2op.get(code.decode("latin-1"))  # type: ignore[attr-defined]
            if operation is None:
                raise ValueError(f"{code!r} is no operation of a pickle")
            if operation.name == "STOP":
                return self._stack[-1]
            self._do(operation)
        raise ValueError("it has more operations than a data set could need")

    def _do(self, operation: Any) -> None:
        name = operation.name
        if name in _LONG:
            self._stack.append(self._long(_LONG[name]))
            return
        argument = operation.arg.reader(self._stream) if operation.arg is not None else None
        if name in _VALUES:
            self._stack.append(_VALUES[name]() if argument is None else argument)
        elif name in _NOTED:
            self._memo[len(self._memo) if argument is None else int(argument)] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument or 0)])
        elif name not in _IGNORED:
            action = _ACTIONS.get(name)
            if action is None:
                raise Refused(f"the operation {name}")
            action(self, argument)

    def _long(self, length_bytes: int) -> bytes:
        """Read piece by piece: a length that the file doesn't have allocates nothing."""
        left = int.from_bytes(self._stream.read(length_bytes), "little")
        found = bytearray()
        while left and (piece := self._stream.read(min(left, _CHUNK_BYTES))):
            found += piece
            left -= len(piece)
        if left:
            raise EOFError(f"{left:,} bytes are missing")
        return found  # type: ignore[return-value]  # never changed, and a copy would double the peak

    def _mark(self, _: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._marked.pop()
        return found

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("a tuple has fewer members than it should")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise Refused("something to be appended to what is no list")
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise Refused("something to be put into what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[bytes(key) if isinstance(key, bytearray) else key] = value

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Name(_text(module), _text(name)))

    def _call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Name) or function not in _CALLS:
            shown = f"{function.module}.{function.name}" if isinstance(function, Name) else "what is no function"
            raise Refused(f"a call of {shown}")
        self._stack.append(_CALLS[function](*arguments))

    def _build(self, _: Any) -> None:
        state, thing = self._stack.pop(), self._stack[-1]
        if isinstance(thing, Array):
            _, shape, dtype, fortran, values = state
            thing.values = _filled(values, dtype, shape, "F" if fortran else "C")
        elif not isinstance(thing, Dtype):  # the byte order of one byte doesn't matter
            raise Refused("a state for what is no array")

    def _pop_two(self) -> list[Any]:
        value = self._stack.pop()
        return [self._stack.pop(), value]


def _text(value: Any) -> str:
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else str(value)


def _filled(values: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[np.uint8]:
    import numpy as np

    if not isinstance(dtype, Dtype) or dtype.code not in ("u1", "|u1", "B", "uint8"):
        raise Refused(f"an array of {dtype.code if isinstance(dtype, Dtype) else 'objects'}")
    raw = values.encode("latin-1") if isinstance(values, str) else values
    return np.frombuffer(raw, dtype=np.uint8).reshape([int(size) for size in shape], order=_text(order))  # type: ignore[call-overload,no-any-return]


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if _text(encoding) not in ("latin1", "latin-1"):
        raise Refused(f"the encoding {_text(encoding)}")
    return _text(text).encode("latin-1")


def _calls() -> Iterator[tuple[Name, Callable[..., Any]]]:
    for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
        yield Name(f"{core}.multiarray", "_reconstruct"), lambda *_: Array()
        yield Name(f"{core}.numeric", "_frombuffer"), lambda *given: Array(_filled(*given))
    yield Name("numpy", "dtype"), lambda code, *_: Dtype(_text(code))
    yield Name("_codecs", "encode"), _encoded


_CALLS = dict(_calls())
_LONG = {  # values that may be large, and how many bytes tell their length
    "BINSTRING": 4, "SHORT_BINSTRING": 1, "BINBYTES": 4, "SHORT_BINBYTES": 1, "BINBYTES8": 8, "BYTEARRAY8": 8,
}  # fmt: skip
_VALUES: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None, "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False, "BININT": int, "BININT1": int, "BININT2": int, "LONG1": int, "BINFLOAT": float,
    "BINUNICODE": str, "SHORT_BINUNICODE": str,
}  # fmt: skip
_NOTED = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_IGNORED = ("PROTO", "FRAME")
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "TUPLE": lambda machine, _: machine._push(tuple(machine._since_mark())),
    "TUPLE1": lambda machine, _: machine._tuple(1),
    "TUPLE2": lambda machine, _: machine._tuple(2),
    "TUPLE3": lambda machine, _: machine._tuple(3),
    "APPEND": lambda machine, _: machine._append([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._since_mark()),
    "SETITEM": lambda machine, _: machine._set(machine._pop_two()),
    "SETITEMS": lambda machine, _: machine._set(machine._since_mark()),
    "GLOBAL": lambda machine, pair: machine._stack.append(Name(*str(pair).split(" ", 1))),
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._call,
    "BUILD": _Machine._build,
}
