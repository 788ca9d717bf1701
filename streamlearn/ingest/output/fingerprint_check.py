"""Fingerprint check: samples added to a topic must have the features and labels of those in it."""

from __future__ import annotations

from streamlearn.apps import AppFolder
from streamlearn.errors import BadRecord, ConfigError, Oversize, UnknownSchema
from streamlearn.samples import SampleCodec
from streamlearn.topics import Reader

__all__ = ["require_alike"]

_LOOK_MS = 10_000


def require_alike(folder: AppFolder) -> None:
    """Check that each partition's newest samples have the application's features and labels: a model learns no others.

    Raises `ConfigError` if they have others, `TopicError` if the topic is missing or cannot be reached.
    """
    codec = SampleCodec(folder.app, folder.settings.samples)
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            value = _newest(reader, partition)
            try:
                if value is not None:
                    codec.decode(value)
            except UnknownSchema as error:
                message = (
                    f"the newest samples of {topic.url}, partition {partition}, do not match the current "
                    f"features and labels of {folder.app.name!r}: {error.message}"
                )
                help = (
                    "a model learns from one kind of samples: give the changed application a new name "
                    '(see "Change an application" in the documentation), or undo the change'
                )
                raise ConfigError(message, help=help) from error
            except (BadRecord, Oversize):
                continue  # the trainer reports it


def _newest(reader: Reader, partition: int) -> bytes | None:
    """Return the newest message of a partition; None if it is empty."""
    begin, end = reader.earliest(partition), reader.end(partition)
    if begin == end:
        return None
    records = reader.read(partition, end - 1, max_records=1, wait_ms=_LOOK_MS)
    return records.values[0] if len(records) else None
