"""Folders of files, here or behind a URL; tensorstore reads both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from rigdyno.engines.blockwise.errors import BadSetting, BadVolume
from rigdyno.engines.blockwise.volumes._messages import missing_extra, one_line

SCHEMES = ("http", "https", "s3", "gs", "file")
MOST_LEVELS = 3  # below a group: where arrays are looked for, to name them in a message
MOST_FOLDERS = 300
RETRIES = 5  # tensorstore's own 32 wait for many minutes before a host that isn't there is called so


def tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise missing_extra("tensorstore") from error
    return tensorstore


def context(threads: int, cache_bytes: int) -> Any:
    if threads < 1 or cache_bytes < 0:
        raise BadSetting(
            f"{threads} threads with {cache_bytes} bytes of cache make no sense: give 1 or more, and 0 or more"
        )
    retries = {"max_retries": RETRIES, "initial_delay": "500ms", "max_delay": "8s"}
    return tensorstore().Context(
        {
            "cache_pool": {"total_bytes_limit": cache_bytes},
            "data_copy_concurrency": {"limit": threads},
            **{f"{service}_request_retries": retries for service in ("http", "s3", "gcs")},
        }
    )


@dataclass(frozen=True)
class Place:
    """A folder that may hold an array; `location` stays what the user wrote."""

    location: str
    root: str  # a path or a URL, without a slash at the end
    context: Any

    @property
    def folder(self) -> Path | None:
        return None if "://" in self.root else Path(self.root)

    @property
    def resolved(self) -> str:
        return self.root if self.folder is None else str(self.folder.resolve())

    @property
    def kvstore(self) -> Any:
        """As tensorstore's specs want it."""
        return f"{self.root}/" if self.folder is None else {"driver": "file", "path": f"{self.resolved}/"}

    def child(self, path: str) -> Place:
        return replace(self, root=f"{self.root}/{path if self.folder else quote(path)}")

    def parent(self) -> Place | None:
        if self.folder is not None:
            above = self.folder.resolve().parent
            return replace(self, root=str(above)) if above.name else None
        url = urlsplit(self.root)
        return replace(self, root=self.root.rpartition("/")[0]) if url.path.strip("/") else None

    @property
    def name(self) -> str:
        return unquote(self.resolved.rpartition("/")[2]) if self.folder is None else self.folder.resolve().name

    def read(self, key: str) -> bytes | None:
        """None: there is no such file."""
        try:
            answer = self._store.read(key).result()
        except ValueError as error:
            raise BadVolume(f"can't read {key} of {self.location}: {one_line(error)}") from error
        return bytes(answer.value) if answer.state == "value" else None

    def document(self, key: str) -> dict[str, Any] | None:
        content = self.read(key)
        return None if content is None else self.parsed(key, content)

    def parsed(self, key: str, content: bytes) -> dict[str, Any]:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadVolume(
                f"{key} of {self.location} is damaged ({one_line(error)}): restore it, or convert the volume anew"
            ) from error
        if not isinstance(document, dict):
            raise BadVolume(f"{key} of {self.location} holds no JSON object: restore it, or convert the volume anew")
        return document

    def below(self, holds_array: Callable[[Place], bool]) -> list[str]:
        """Paths of the arrays under this folder, for messages. Behind a URL folders can't be listed."""
        found, looked = [], 0
        todo = [(self, "", 0)]
        while todo and looked < MOST_FOLDERS:
            (place, path, level), looked = todo.pop(0), looked + 1
            if path and holds_array(place):
                found.append(path)
            elif level < MOST_LEVELS:
                todo += [(place.child(name), f"{path}/{name}".strip("/"), level + 1) for name in place._folders()]
        return found

    def _folders(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir()) if self.folder else []
        except OSError:
            return []

    @cached_property
    def _store(self) -> Any:
        return tensorstore().KvStore.open(self.kvstore, context=self.context).result()


def local_path(location: str) -> str | None:
    """None for what lies behind a URL."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    if scheme not in SCHEMES:
        raise BadVolume(f"{location} begins with {scheme}://, and {', '.join(SCHEMES)} are known")
    return unquote(rest) if scheme == "file" else None
