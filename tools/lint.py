"""Check rules about the source tree that ruff, mypy and import-linter don't know.

Usage: python tools/lint.py [PACKAGE]. PACKAGE is a folder, src/rigdyno by default. Prints one line for each finding,
and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPEATED_CLASSES = {
    "BadSetting",  # public in both engines
    "Rule",  # one in each file of engines/dp/layers
}

MOST_LINES = 60  # of a function, decorators not counted

MOST_IN_FOLDER = 16  # modules, __init__.py not counted

CATALOGUES = {"commands", "workloads"}  # folders in which each addition is one more file

MOST_MODULES = 440  # in the package, __init__.py not counted


@dataclass(frozen=True)
class Module:
    path: Path
    parts: tuple[str, ...]  # of its name below the package; a folder's own name for __init__.py
    tree: ast.Module

    @property
    def is_folder(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def folder(self) -> tuple[str, ...]:
        return self.parts if self.is_folder else self.parts[:-1]


def read_modules(package: Path) -> list[Module]:
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.append(Module(path, parts[:-1] if path.name == "__init__.py" else parts, tree))
    return found


def find_problems(package: Path) -> list[str]:
    """Return one line for each rule that is broken somewhere in the package."""
    modules = read_modules(package)
    if not modules:
        return [f"{package}: there is no module"]
    checks = (
        find_repeated_classes(modules),
        find_long_functions(modules),
        find_private_imports(modules, package.name),
        find_full_folders(modules, package),
        find_too_many_modules(modules, package),
    )
    return list(dict.fromkeys(problem for check in checks for problem in check))


def find_repeated_classes(modules: Sequence[Module]) -> Iterator[str]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name not in REPEATED_CLASSES:
                places[node.name].append(f"{module.path}:{node.lineno}")
    for name, (first, *others) in places.items():
        for other in others:
            yield f"{other}: the class {name} has the name of another one in {first}"


def find_long_functions(modules: Sequence[Module]) -> Iterator[str]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES:
                    yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, more than {MOST_LINES}"


def find_private_imports(modules: Sequence[Module], package: str) -> Iterator[str]:
    """Find imports of a module or folder with a leading underscore from outside the folder that it is in."""
    private = {module.parts for module in modules if module.parts and _is_private(module.parts[-1])}
    for module in modules:
        for line, imported in _find_imports(module, package):
            for end in range(1, len(imported) + 1):
                home = imported[: end - 1]
                if imported[:end] in private and module.folder[: len(home)] != home:
                    name = ".".join((package, *imported[:end]))
                    yield f"{module.path}:{line}: {name} is private to its folder"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _find_imports(module: Module, package: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line of each import and the imported name, in parts below the package; it may be a function's name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (package, *module.folder[: len(module.folder) + 1 - node.level]) if node.level else ()
            start = ".".join((*above, *((node.module,) if node.module else ())))
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, *parts = name.split(".")
            if top == package:
                yield node.lineno, tuple(parts)


def find_full_folders(modules: Sequence[Module], package: Path) -> Iterator[str]:
    sizes = Counter("/".join(module.folder) for module in modules if not module.is_folder)
    for folder, size in sizes.items():
        if size > MOST_IN_FOLDER and folder not in CATALOGUES:
            yield f"{package / folder}: {size} modules in a folder, more than {MOST_IN_FOLDER}"


def find_too_many_modules(modules: Sequence[Module], package: Path) -> Iterator[str]:
    count = sum(not module.is_folder for module in modules)
    if count > MOST_MODULES:
        yield f"{package}: {count} modules, more than {MOST_MODULES}"


def main(arguments: Sequence[str]) -> int:
    problems = find_problems(Path(arguments[0] if arguments else "src/rigdyno"))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
