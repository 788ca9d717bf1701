"""An application's folder: app.py (what it is), app.toml (where and how much), perhaps a model.py.

Loading one never loads TensorFlow: ingest workers read applications too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from streamlearn.apps.app import App
from streamlearn.apps.module import app_module
from streamlearn.apps.places import registry_url, store_url
from streamlearn.config import read_settings
from streamlearn.errors import ConfigError, SpecError, UsageError
from streamlearn.settings import Settings
from streamlearn.topics import AccessSettings, Topic, TopicSettings, WriterSettings, open_topic
from streamlearn.topics.settings import KafkaSecurity

__all__ = ["TOPICS", "AppFolder", "load_app"]

# What a dead letter says beside the bytes it keeps: origin, reason, and a detail of bounded length.
DEAD_LETTER_ADDED_BYTES = 64 * 1024
TOPICS = ("impressions", "actions", "samples", "progress", "dead_letters")
_HEAVY = ("tensorflow", "apache_beam", "kafka")


@dataclass(frozen=True)
class AppFolder:
    """An application with its folder and its settings."""

    app: App
    folder: Path
    settings: Settings

    def topic_url(self, topic: str) -> str:
        """Where one of its topics is.

        Args:
            topic: One of `TOPICS`; the field of that name in `settings.topics` may name another place.
        """
        if topic not in TOPICS:
            message = f"an application has no topic named {topic!r}"
            raise UsageError(message, help=f"its topics are {', '.join(TOPICS)}")
        explicit: str = getattr(self.settings.topics, topic)
        if explicit:
            return explicit
        root = self.settings.topics.root or f"{self.folder.resolve().as_uri()}/.streamlearn/topics"
        name = f"{self.app.name}.{topic.replace('_', '-')}"
        if root.startswith("memory://"):  # names, and no folders
            return f"{root}{name}"
        return f"{root.rstrip('/')}/{name}"

    def topic_settings(self, topic: str, partitions: int) -> TopicSettings:
        """What one of its topics has to be like to hold what its settings allow.

        Args:
            topic: One of `TOPICS`.
            partitions: How many, for impressions and actions alike.
        """
        if topic == "progress":  # a word per lot, kept until a newer one comes
            return TopicSettings(partitions=1, compacted=True, retention_ms=-1)
        bytes_max = {
            "samples": self.settings.samples.message_bytes_max,
            "dead_letters": self.settings.events.record_bytes_max + DEAD_LETTER_ADDED_BYTES,
        }.get(topic, self.settings.events.record_bytes_max)
        return TopicSettings(partitions=partitions, record_bytes_max=max(bytes_max, TopicSettings().record_bytes_max))

    @property
    def store_url(self) -> str:
        """Where its versions are."""
        return store_url(self.folder, self.settings.versions)

    @property
    def registry_url(self) -> str:
        """Where its nodes and operators meet."""
        return registry_url(self.folder, self.settings.registry)

    @cached_property
    def access(self) -> AccessSettings:
        """How its topics are reached."""
        kafka = self.settings.kafka
        security = KafkaSecurity(
            protocol=kafka.security_protocol,
            sasl_mechanism=kafka.sasl_mechanism,
            sasl_username=kafka.sasl_username,
            ssl_cafile=kafka.ssl_cafile,
        )
        topics = self.settings.topics
        return AccessSettings(
            unreachable_after_ms=_ms(topics.reach_s),
            kafka=security,
        )

    @cached_property
    def writer_settings(self) -> WriterSettings:
        """How its topics are written."""
        topics = self.settings.topics
        return WriterSettings(fsync=topics.fsync, delivery_timeout_ms=_ms(topics.delivery_timeout_s))

    def open_topic(self, topic: str) -> Topic:
        """Open one of its topics; see `topic_url` for their names.

        Raises:
            TopicMissing: It was never created.
            TopicUnreachable: Nobody answered within `topics.reach_s`.
        """
        return open_topic(self.topic_url(topic), self.access)


def load_app(folder: Path | str, overrides: Sequence[str] | str = ()) -> AppFolder:
    """Load an application from its folder.

    Args:
        folder: The folder that holds app.py.
        overrides: Settings laid over app.toml, as on the command line.

    Raises:
        ConfigError: There is no app.py, or app.toml is at fault.
        SpecError: app.py fails, has no `app`, loads a heavy package, or declares a contradiction.
    """
    path, overrides = Path(folder), [overrides] if isinstance(overrides, str) else overrides
    if not (path / "app.py").is_file():
        message = f"{path} is not an application folder: it has no app.py"
        raise ConfigError(message, help="name the folder of an application, such as examples/kuairand")
    loaded_before = {heavy for heavy in _HEAVY if heavy in sys.modules}
    module = app_module(path, "app")
    try:
        app = _app_of(path / "app.py", module, loaded_before)
    except SpecError:
        del sys.modules[module.__name__]  # a mended file is read anew
        raise
    return AppFolder(app, path, read_settings(Settings, path / "app.toml", overrides))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _app_of(file: Path, module: ModuleType, loaded_before: set[str]) -> App:
    for heavy in _HEAVY:
        if heavy in sys.modules and heavy not in loaded_before:
            message = f"{file} loads {heavy}"
            hint = (
                "every process reads app.py, so it must stay light: keep models in model.py and name them as "
                "MODULE:CLASS"
            )
            raise SpecError(message, help=hint)
    app = getattr(module, "app", None)
    if not isinstance(app, App):
        message = f"{file} declares no application: `app` is {type(app).__name__}"
        raise SpecError(message, help="assign app = App(name=..., features=..., groups=..., labels=...)")
    return app
