"""Look up a user's step function in its file without running the file; only the worker runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rigdyno.base.errors import UnknownName, UsageError, os_error_reason


def require_function(target: str, arguments: Collection[str] = ()) -> None:
    """Require that FILE.py:FUNCTION names a function that the file defines, imports or assigns.

    A function that the file itself defines must take these arguments."""
    file, _, function = target.rpartition(":")
    body = _parse(file).body
    names = set(_list_names(body))
    if function not in names and "*" not in names:
        own = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        raise UnknownName("function", function, own or names, where=f"{file}: ", key="target")
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == function and not node.decorator_list:
            _require_arguments(node, arguments, file)


def _require_arguments(function: ast.FunctionDef, given: Collection[str], file: str) -> None:
    taken = function.args
    if taken.kwarg is not None:
        return
    known = {argument.arg for argument in (*taken.args, *taken.kwonlyargs)}
    for name in sorted(set(given) - known):
        where = f"{file}:{function.lineno}: "
        raise UnknownName(f"argument of {function.name}", name, known, where, key=f"set.{name}")


def text_arguments(target: str) -> set[str]:
    """Return the text arguments of a function that the file itself defines, by annotation or default value."""
    return {argument.arg for argument, default in _list_arguments(target) if _is_text(argument, default)}


def number_arguments(target: str) -> list[str]:
    """Return the arguments that may be whole numbers."""
    return [argument.arg for argument, default in _list_arguments(target) if not _is_text(argument, default)]


def _list_arguments(target: str) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    file, _, function = target.rpartition(":")
    for node in _parse(file).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            taken = node.args
            positional = [*taken.posonlyargs, *taken.args]
            without: list[ast.expr | None] = [None] * (len(positional) - len(taken.defaults))
            yield from zip(positional, [*without, *taken.defaults], strict=True)
            yield from zip(taken.kwonlyargs, taken.kw_defaults, strict=True)


def _is_text(argument: ast.arg, default: ast.expr | None) -> bool:
    """Recognise text: `name: str`, `name: "str | None"`, `name: Literal["largest", ...]`, or a default that is text."""
    if argument.annotation is not None:
        words = ast.unparse(argument.annotation)
        return "str" in re.findall(r"\w+", words) or "Literal" in words
    return isinstance(default, ast.Constant) and isinstance(default.value, str)


def _parse(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_bytes(), filename=file)
    except FileNotFoundError:
        raise UsageError(f"no file {file} here", key="target") from None
    except OSError as error:
        raise UsageError(f"can't read {file}: {os_error_reason(error)}", key="target") from None
    except SyntaxError as error:
        place = f"{file}:{error.lineno}" if error.lineno else file
        raise UsageError(f"{place} is not Python: {error.msg}", key="target") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deeply for the parser
        raise UsageError(f"{file} is not Python: {error or 'nested too deeply'}", key="target") from None


def _list_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names bound at the file's top level, including branches of `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        else:
            yield from (
                name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            )
            for field in ("body", "orelse", "finalbody"):
                yield from _list_names(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _list_names(handler.body)
