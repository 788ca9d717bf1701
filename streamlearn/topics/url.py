"""The URL of a topic: its implementation, brokers and name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from streamlearn.errors import UsageError

__all__ = ["TopicUrl", "parse_url"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PORT_MAX = 65_535
_HELP = "topic URLs are memory://NAME, file:///DIR/NAME or kafka://HOST:PORT[,HOST:PORT]/NAME"


@dataclass(frozen=True, slots=True)
class TopicUrl:
    """A parsed URL."""

    kind: Literal["memory", "file", "kafka"]
    name: str  # of the topic; the whole path of a file topic
    brokers: tuple[str, ...] = ()  # HOST:PORT of the first brokers to contact; only for Kafka


def parse_url(url: str) -> TopicUrl:
    """Parse a topic's URL.

    Raises:
        UsageError: The URL is invalid. The message never repeats credentials.

    Examples:
        >>> parse_url("kafka://127.0.0.1:9092/events").brokers
        ('127.0.0.1:9092',)
    """
    parts = urlsplit(url)
    # Check the whole URL: a password with a slash or a hash in it ends the part that names the host.
    in_path = parts.scheme == "file" and parts.netloc in ("", "localhost")
    if not in_path and ("@" in url or "%40" in url):
        message = "a topic URL must not contain credentials"
        raise UsageError(message, help=_HELP)
    if parts.scheme == "memory" and _is_name(parts.netloc) and parts.path in ("", "/"):
        return TopicUrl("memory", parts.netloc)
    if in_path and not parts.query:
        path = PurePosixPath(unquote(parts.path))
        if path.is_absolute() and _is_name(path.name):
            return TopicUrl("file", str(path))
    if parts.scheme == "kafka" and _is_name(parts.path[1:]):
        brokers = tuple(parts.netloc.split(","))
        if all(_is_broker(broker) for broker in brokers):
            return TopicUrl("kafka", parts.path[1:], brokers)
    message = f"{url!r} is not a topic URL"
    raise UsageError(message, help=_HELP)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def _is_broker(broker: str) -> bool:
    host, _, port = broker.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX
