"""A user's own step, from FILE.py:FUNCTION."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rigdyno.contracts import Options, Place, Requirement, Steps
from rigdyno.errors import BadValue, suggestion
from rigdyno.schema.record import UNNAMED
from rigdyno.schema.samples import is_count
from rigdyno.schema.spec import Value
from rigdyno.schema.system import System
from rigdyno.workloads._options import text

WHAT_A_RETURN_VALUE_MEANS = (
    "what a step returns is how many items it did, a whole number from 1 on (a batch size, never a loss); "
    "one that returns nothing is counted as a step"
)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of your own, called again and again."""

    framework: ClassVar[str] = "any"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = ()
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {}

    file: str
    function: str
    unit: str = UNNAMED  # what the function counts, if it returns a number
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text("unit", self.unit)
        if not self.unit.strip():
            raise BadValue("unit must name what is counted, like image or token", key="set.unit")
        if not Path(self.file).is_file():
            raise BadValue(f"no file '{self.file}'", key="target")

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int | None:
        return None

    def start_seconds(self) -> float:
        return 3.0  # most import a framework

    def step_seconds(self, device: str) -> float | None:
        return None

    def build(self, place: Place) -> Steps:
        function = found_in(imported(Path(self.file)), self.function, self.file)
        where = f"{self.function} in {self.file}"
        check_arguments(function, self.arguments, where)
        step = _CheckedStep(function, dict(self.arguments), where)
        return Steps(kinds={"step": step}, unit=self.unit, counts=lambda: step.counts is True)


def imported(path: Path) -> ModuleType:
    """As Python runs a script, its folder first on the path, but not as __main__: what that guards stays asleep."""
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    # A file that is called like a module which is already here must not replace it.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_user"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadValue(f"'{path}' is no Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise BadValue(f"'{path}' ends the program when imported; guard that by if __name__ == '__main__'") from error
    return module


def found_in(module: ModuleType, name: str, file: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        raise BadValue(f"no function named '{name}' in {file}; {suggestion(name, _functions(module))}")
    function = getattr(module, name)
    if not callable(function):
        raise BadValue(f"'{name}' in {file} is no function but a value of type {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _functions(module: ModuleType) -> list[str]:
    """The module's own: not those that it imports, unless there is nothing else."""
    public = {name: thing for name, thing in vars(module).items() if callable(thing) and not name.startswith("_")}
    own = [name for name, thing in public.items() if getattr(thing, "__module__", None) == module.__name__]
    return own or list(public)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Value], where: str) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # some built-in functions don't tell
        return
    takes = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in arguments:
        if name not in takes and not takes_any:
            raise BadValue(f"{where} takes no argument '{name}'; {suggestion(name, takes)}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in _MANY and name not in arguments:
            raise BadValue(f"{where} needs an argument '{name}' that nobody gives; try {_remedy(name, parameter)}")


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _remedy(name: str, parameter: inspect.Parameter) -> str:
    return f"--set {name}=..." if parameter.kind in _BY_NAME else "a default value: it can't be given by name"


class _CheckedStep:
    """The function, and what it returns: a number of items at every step, or nothing at any."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Value], where: str) -> None:
        self._function, self._arguments, self._where = function, arguments, where
        self.counts: bool | None = None  # None: nobody has called it yet

    def __call__(self) -> float | None:
        items = self._function(**self._arguments)
        if self.counts is not (items is not None):
            if self.counts is not None:
                raise BadValue(f"{self._where} returned a number of items at one step and nothing at another")
            self.counts = items is not None
        return None if items is None else _counted(items, self._where)


def _counted(items: object, where: str) -> float:
    """A loss must never become a rate: most of them are no whole numbers for long."""
    if is_count(items) and items != 0:
        return float(items)
    got = repr(items) if isinstance(items, (Real, str)) else f"a value of type {type(items).__name__}"
    raise BadValue(f"{where} returned {got}; {WHAT_A_RETURN_VALUE_MEANS}")
