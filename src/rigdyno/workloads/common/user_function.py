"""Measures a user's own step, given as FILE.py:FUNCTION."""

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

from rigdyno.base.errors import BadValue, suggestion
from rigdyno.contracts import Requirement, Steps, WorkerPlace, Workload
from rigdyno.schema.record import UNNAMED
from rigdyno.schema.samples import is_count
from rigdyno.schema.spec import Value

WHAT_A_RETURN_VALUE_MEANS = (
    "a step returns how many items it processed, a whole number of at least 1 (a batch size, never a loss), "
    "or nothing, which counts as one step"
)

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Function(Workload):
    """Calls a function of your own again and again."""

    framework: ClassVar[str] = "any"
    requires: ClassVar[tuple[Requirement, ...]] = ()

    file: str
    function: str
    unit: str = UNNAMED  # what the function counts, if it returns a number
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.unit.strip():
            raise BadValue("unit must name what is counted, like image or token", key="set.unit")
        if not Path(self.file).is_file():
            raise BadValue(f"no file '{self.file}'", key="target")

    def build(self, place: WorkerPlace) -> Steps:
        function = find_function(import_user_file(Path(self.file)), self.function, self.file)
        where = f"{self.function} in {self.file}"
        check_arguments(function, self.arguments, where)
        step = _CheckedStep(function, dict(self.arguments), where)
        return Steps(kinds={"step": step}, unit=self.unit, counts=lambda: step.counts is True)


def import_user_file(path: Path) -> ModuleType:
    """Import the file like a script, with its folder first on the path, but not as __main__: code guarded by
    `if __name__ == "__main__"` doesn't run."""
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    # A file with the name of an imported module must not replace that module.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_user"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadValue(f"'{path}' isn't a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise BadValue(f"'{path}' ends the program when imported; guard that by if __name__ == '__main__'") from error
    return module


def find_function(module: ModuleType, name: str, file: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        raise BadValue(f"no function named '{name}' in {file}; {suggestion(name, _list_functions(module))}")
    function = getattr(module, name)
    if not callable(function):
        raise BadValue(f"'{name}' in {file} isn't a function but a value of type {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _list_functions(module: ModuleType) -> list[str]:
    """List the functions that the module defines, or those that it imports if it defines none."""
    public = {name: thing for name, thing in vars(module).items() if callable(thing) and not name.startswith("_")}
    own = [name for name, thing in public.items() if getattr(thing, "__module__", None) == module.__name__]
    return own or list(public)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Value], where: str) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # some built-in functions have no signature
        return
    takes = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in arguments:
        if name not in takes and not takes_any:
            raise BadValue(f"{where} takes no argument '{name}'; {suggestion(name, takes)}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in _MANY and name not in arguments:
            raise BadValue(f"{where} needs an argument '{name}'; try {_suggest_fix(name, parameter)}")


def _suggest_fix(name: str, parameter: inspect.Parameter) -> str:
    return f"--set {name}=..." if parameter.kind in _BY_NAME else "a default value: it can't be given by name"


class _CheckedStep:
    """Calls the function and checks that it returns a number of items at every step, or nothing at every step."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Value], where: str) -> None:
        self._function, self._arguments, self._where = function, arguments, where
        self.counts: bool | None = None  # whether it returns a number; None: not called yet

    def __call__(self) -> float | None:
        items = self._function(**self._arguments)
        if self.counts is not (items is not None):
            if self.counts is not None:
                raise BadValue(f"{self._where} returned a number of items at one step and nothing at another")
            self.counts = items is not None
        return None if items is None else _check_count(items, self._where)


def _check_count(items: object, where: str) -> float:
    """Refuse anything but a whole number: a loss must never become a rate, and losses are rarely whole for long."""
    if is_count(items) and items != 0:
        return float(items)
    returned = repr(items) if isinstance(items, (Real, str)) else f"a value of type {type(items).__name__}"
    raise BadValue(f"{where} returned {returned}; {WHAT_A_RETURN_VALUE_MEANS}")
