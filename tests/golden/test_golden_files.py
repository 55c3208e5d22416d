"""Every golden file on disk belongs to a test."""

import importlib

from golden_files import FOLDER, declared_files


def test_no_golden_file_is_stale():
    for module in sorted(FOLDER.glob("test_*.py")):
        importlib.import_module(module.stem)
    found = {path for path in FOLDER.rglob("*") if path.suffix in (".txt", ".json")}
    stale = sorted(str(path.relative_to(FOLDER)) for path in found - declared_files())
    assert stale == [], "no test uses these golden files: delete them"


def test_golden_files_stay_small():
    """The diff of a larger file would not be read."""
    sizes = {path.name: path.stat().st_size for path in declared_files() if path.exists()}
    assert {name: size for name, size in sizes.items() if size > 150_000} == {}
    assert sum(sizes.values()) < 1_500_000
