"""The folder of a file topic: its identity and settings. One rename creates it, and one deletes it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.errors import BadRecord, ConfigError, TopicExists, TopicMissing, TopicUnreachable
from streamlearn.struct_decoder import from_json
from streamlearn.topics.file_head import HEAD_NAME, Head
from streamlearn.topics.file_segment import segment_path
from streamlearn.topics.settings import TopicSettings
from streamlearn.topics.topic import replaced

__all__ = ["Folder", "create_file_topic", "delete_file_topic", "folder_unreachable", "open_folder"]

_IDENTITY_NAME = "topic.json"
_IDENTITY_BYTES_MAX = 65_536
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened topic folder."""

    path: Path
    topic_id: str
    settings: TopicSettings  # they never change
    stamp: tuple[int, int, int]  # inode and times of topic.json, which reveal that another file replaced it

    @property
    def url(self) -> str:
        """The topic's URL."""
        return f"file://{self.path}"

    def partition(self, partition: int) -> Path:
        """Return the folder of a partition."""
        return self.path / str(partition)

    def check_same(self) -> None:
        """Raise TopicMissing or TopicReplaced if the topic was deleted, or created again, since it was opened."""
        try:
            stamp = _stamp(self.path / _IDENTITY_NAME)
        except FileNotFoundError:
            raise _missing(self.path) from None
        if stamp != self.stamp:
            current = open_folder(self.path)
            if current.topic_id != self.topic_id:
                raise replaced(self.url, self.topic_id, current.topic_id)


def create_file_topic(path: Path, settings: TopicSettings) -> None:
    """Create a topic's folder; raises TopicExists, or TopicUnreachable if the file system refuses."""
    scratch = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for partition in range(settings.partitions):
            folder = scratch / str(partition)
            folder.mkdir(parents=True)
            segment_path(folder, 0).touch()
            (folder / HEAD_NAME).write_bytes(Head(0, 0, 0, 0).to_bytes())
            (folder / "lock").touch()
        identity = {"format": _FORMAT, "topic_id": str(uuid.uuid4()), "settings": asdict(settings)}
        with (scratch / _IDENTITY_NAME).open("w") as file:
            json.dump(identity, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except OSError as error:
        if not os.path.lexists(path):
            raise folder_unreachable(path, error) from error
        message = f"file://{path} exists already"
        raise TopicExists(message, help="delete it first, or choose another name") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def delete_file_topic(path: Path) -> None:
    """Delete a topic's folder; raises TopicMissing, or TopicUnreachable if the file system refuses."""
    scratch = path.with_name(f".{path.name}.gone-{uuid.uuid4().hex}")
    try:
        if not (path / _IDENTITY_NAME).exists():
            raise _missing(path)
        path.rename(scratch)
        shutil.rmtree(scratch)
    except OSError as error:
        raise folder_unreachable(path, error) from error


def open_folder(path: Path) -> Folder:
    """Read a topic's identity and settings; raises TopicMissing, BadRecord or TopicUnreachable."""
    file = path / _IDENTITY_NAME
    try:
        stamp = _stamp(file)
        with file.open("rb") as opened:
            raw = opened.read(_IDENTITY_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except OSError as error:
        raise folder_unreachable(path, error) from error
    try:
        identity = from_json(raw, dict[str, Any])
        if identity["format"] != _FORMAT:
            message = f"{file} has format {identity['format']}, but this version reads {_FORMAT}"
            raise BadRecord(message, help="read it with the version of streamlearn that wrote it")
        return Folder(path, str(identity["topic_id"]), TopicSettings(**identity["settings"]), stamp)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, ConfigError) as error:
        message = f"{file} does not describe a topic: {error}"
        raise BadRecord(message, help="restore it from a copy, or delete the folder") from error


def folder_unreachable(path: Path, error: OSError) -> TopicUnreachable:
    """Return the error for a folder that the file system refuses."""
    message = f"file://{path}: {error.strerror} ({error.filename})"
    return TopicUnreachable(message, help="check that the folder is there and that this user may read and write it")


def _stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _missing(path: Path) -> TopicMissing:
    message = f"topic file://{path} does not exist"
    return TopicMissing(message, help="create it first, or correct the path; file URLs are absolute")
