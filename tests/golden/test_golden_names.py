"""The public names of the package and its engines, with their signatures."""

import importlib
import inspect
import pkgutil

from golden_files import check_golden, declare

import rigdyno
from rigdyno import engines

declare(["public_names.txt"])


def find_public_modules():
    """Return the modules below `rigdyno.engines` that declare `__all__`, and `rigdyno` itself."""
    found = ["rigdyno"]
    for module in pkgutil.walk_packages(engines.__path__, "rigdyno.engines."):
        if module.ispkg and hasattr(importlib.import_module(module.name), "__all__"):
            found.append(module.name)
    return found


def describe_module(name):
    module = importlib.import_module(name)
    lines = [name]
    for public in sorted(module.__all__):
        lines += [f"  {line}" for line in describe(public, getattr(module, public))]
    return lines


def describe(name, thing):
    if inspect.isclass(thing):
        return describe_class(name, thing)
    if callable(thing):
        return [f"function {name}{describe_signature(thing)}"]
    return [f"{type(thing).__name__} {name}"]


def describe_class(name, thing):
    """Return the constructor, and every public method and property that the package itself defines."""
    known = [base for base in thing.__mro__[1:] if base.__module__.partition(".")[0] in ("rigdyno", "builtins")]
    bases = ", ".join(base.__name__ for base in known if base not in (object, BaseException))
    kind = "exception" if issubclass(thing, BaseException) else "class"
    # An error without a constructor has that of Exception, whose signature depends on the Python version.
    own = not issubclass(thing, BaseException) or inspect.isfunction(thing.__init__)
    lines = [f"{kind} {name}{describe_signature(thing) if own else ''}{f' <- {bases}' if bases else ''}"]
    for member in sorted(find_members(thing)):
        value = inspect.getattr_static(thing, member, None)  # a field without a default has no value
        if isinstance(value, (classmethod, staticmethod)):
            lines.append(f"  {type(value).__name__} {member}{describe_signature(value.__func__)}")
        elif inspect.isfunction(value):
            lines.append(f"  method {member}{describe_signature(value)}")
        else:
            lines.append(f"  attribute {member}")
    return lines


def find_members(thing):
    ours = [each for each in thing.__mro__ if each.__module__.partition(".")[0] == "rigdyno"]
    names = {name for each in ours for name in (*vars(each), *inspect.get_annotations(each))}
    return {name for name in names if not name.startswith("_")}


def describe_signature(thing):
    """Return the parameters with their defaults, without annotations: those name modules that may move."""
    parameters = []
    for parameter in inspect.signature(thing).parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and not isinstance(
            default, (bool, int, float, str, tuple, type(None))
        ):
            parameter = parameter.replace(default=Anything(f"<{type(default).__name__}>"))
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty))
    return str(inspect.Signature(parameters))


class Anything:
    """A default that is shown by its type: its text may contain an address or a module."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def test_public_names_and_signatures_are_unchanged():
    assert rigdyno.__all__, "find_public_modules() starts with it"
    text = "\n\n".join("\n".join(describe_module(name)) for name in find_public_modules()) + "\n"
    check_golden("public_names.txt", text)
