"""Check that docstrings, comments and help texts are plain English.

Usage: python tools/language.py [--list] [FOLDER...]. Folders are src/rigdyno, tests, benchmarks and tools by default.
Counts texts with a finding: a docstring that opens with a preposition or a relative word, a word that is not plain, or
a help text longer than one line. Exits with 1 if their share is above LIMIT, which may only fall.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.01  # share of texts with a finding; it may only fall

HELP_CHARACTERS = 90  # help text of a command-line option, its default included

HELP_ARGUMENTS = ("help", "short_help", "duel_help")

OPENINGS = ("Of", "By", "As", "That", "Where", "What", "Who", "Whoever", "Whether", "For", "Than", "Which")

# Words that mean something else in plain English, and terms for which the glossary has another word.
BANNED = (
    "whoever", "whomever", "nobody", "somebody", "told", "held against", "so many", "so much", "beside", "lies", "lie",
    "the other one", "such a one", "how-manieth", "leg", "legs", "crew", "tray", "fence", "mood",
    "settled", "doubt", "doubts", "cards", "sample's gradient", "party's", "thereof", "thereby", "wherever",
)  # fmt: skip

_BANNED = re.compile(rf"\b((?i:{'|'.join(map(re.escape, BANNED))})|is none)\b")

# The picture of a campaign is called a card, and `settled` is a field of stored records.
_ALLOWED = re.compile(r"`[^`]*`|\bsettled=|\bCards?\b")


@dataclass(frozen=True)
class Text:
    path: Path
    line: int
    kind: str  # docstring, comment, help
    words: str

    def find_problem(self) -> str | None:
        words = _ALLOWED.sub("", self.words)
        if self.kind == "docstring" and words.split(maxsplit=1)[:1] and words.split()[0].rstrip(",;:") in OPENINGS:
            return f"opens with '{words.split()[0]}'"
        if self.kind == "help" and len(self.words) > HELP_CHARACTERS:
            return f"has {len(self.words)} characters, more than {HELP_CHARACTERS}"
        found = _BANNED.search(words)
        return f"'{found[0]}' is not plain" if found else None


def read_texts(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = ast.get_docstring(node)
            if words:
                yield Text(path, getattr(node, "lineno", 1), "docstring", words)
        if isinstance(node, ast.keyword) and node.arg in HELP_ARGUMENTS and isinstance(node.value, ast.Constant):
            yield Text(path, node.value.lineno, "help", str(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:)", token.string):
            yield Text(path, token.start[0], "comment", token.string.lstrip("# "))


def check(folders: Sequence[Path]) -> tuple[int, list[str]]:
    """Return the number of texts, and a line for each one with a finding."""
    texts = [text for folder in folders for path in sorted(folder.rglob("*.py")) for text in read_texts(path)]
    problems = [(text, problem) for text in texts if (problem := text.find_problem()) is not None]
    return len(texts), [f"{text.path}:{text.line}: {text.kind} {problem}" for text, problem in problems]


def main(arguments: Sequence[str]) -> int:
    folders = [Path(each) for each in arguments if each != "--list"]
    count, problems = check(folders or [Path(name) for name in ("src/rigdyno", "tests", "benchmarks", "tools")])
    share = len(problems) / max(1, count)
    if "--list" in arguments or share > LIMIT:
        print("\n".join(problems))
    print(f"plain English: {len(problems)} of {count} texts have a finding, {share:.1%}; the limit is {LIMIT:.1%}")
    return 1 if share > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
