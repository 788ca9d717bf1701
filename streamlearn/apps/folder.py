"""An application's folder: app.py (its declaration), app.toml (its settings), and optionally model.py.

Loading it never loads TensorFlow, since ingest workers read applications too.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from msgspec import structs

from streamlearn.apps.app import App
from streamlearn.config import read_settings
from streamlearn.errors import ConfigError, SpecError, StreamlearnError, UsageError
from streamlearn.features.names import fingerprint
from streamlearn.settings import Settings
from streamlearn.settings.serving import ServingSettings
from streamlearn.settings.versions import RegistrySettings, VersionSettings
from streamlearn.times import time_text
from streamlearn.topics import AccessSettings, Topic, TopicSettings, WriterSettings, open_topic

__all__ = ["TOPICS", "AppFolder", "app_module", "load_app", "registry_url", "store_url"]

# Most bytes of a dead letter beside the original record: origin, reason, and a detail of bounded length.
DEAD_LETTER_ADDED_BYTES = 64 * 1024
TOPICS = ("impressions", "actions", "samples", "interactions", "items", "progress", "dead_letters")
# An overloaded node reads far more than it scores, and can neither cut nor refuse what waits unread.
_LANE_NICE_WITH_ALLOWANCE = 4
_HEAVY = ("tensorflow", "apache_beam", "kafka")


@dataclass(frozen=True)
class AppFolder:
    """An application with its folder and settings."""

    app: App
    folder: Path
    settings: Settings

    @cached_property
    def serving(self) -> ServingSettings:
        """The settings of serving. With an allowance lanes give way to the threads that read requests."""
        settings = self.settings.serving
        if settings.lane_nice or not self.settings.allowance.candidates_min:
            return settings
        return structs.replace(settings, lane_nice=_LANE_NICE_WITH_ALLOWANCE)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of its topics: those in `TOPICS`, without those that its declaration has no use for."""
        is_used = {"interactions": bool(self.app.features.entities), "items": self.app.retrieval is not None}
        return tuple(name for name in TOPICS if is_used.get(name, True))

    def topic_url(self, topic: str) -> str:
        """Return the URL of a topic: its own setting in `settings.topics`, or a name under `topics.root`."""
        if topic not in TOPICS:
            message = f"an application has no topic named {topic!r}"
            raise UsageError(message, help=f"its topics are {', '.join(TOPICS)}")
        if topic == "interactions" and self.settings.topics.samples:
            return f"{self.settings.topics.samples}-interactions"
        explicit: str = getattr(self.settings.topics, topic, "")
        if explicit:
            return explicit
        root = self.settings.topics.root or f"{self.folder.resolve().as_uri()}/.streamlearn/topics"
        # Events belong to what callers know; everything made of them belongs to the application that made it.
        is_told = topic in ("impressions", "actions", "items")
        owner = self.app.events_name if is_told else self.app.samples_name
        name = f"{owner}.{topic.replace('_', '-')}"
        return f"{root}{name}" if root.startswith("memory://") else f"{root.rstrip('/')}/{name}"

    def topic_settings(self, topic: str, partitions: int) -> TopicSettings:
        """Return the settings that a topic needs to hold the largest records that the settings allow."""
        if topic == "progress":  # one record per lot, kept until a newer one replaces it
            return TopicSettings(partitions=1, compacted=True, retention_ms=-1)
        bytes_max = {
            "samples": self.settings.samples.message_bytes_max,
            "dead_letters": self.settings.events.record_bytes_max + DEAD_LETTER_ADDED_BYTES,
        }.get(topic, self.settings.events.record_bytes_max)
        made = TopicSettings(partitions=partitions, record_bytes_max=max(bytes_max, TopicSettings().record_bytes_max))
        if topic == "items":  # one record per item, kept until a newer one replaces it
            return replace(made, compacted=True, retention_ms=-1)
        if self.settings.topics.time == "event" and topic in ("impressions", "actions"):
            # Records have their event time, so a topic would delete those of a history by their age at once.
            made = replace(made, retention_ms=-1, retention_bytes=self.settings.replay.retention_bytes)
        return made

    def require_own_samples(self, verb: str) -> None:
        """Check that the application makes its own samples.

        Raises:
            UsageError: It uses those of another one.
        """
        if self.app.samples_of:
            message = f"app {self.app.name!r} uses the samples of {self.app.samples_of!r}"
            raise UsageError(message, help=f"run {verb} for {self.app.samples_of!r}, once for both")

    @property
    def store_url(self) -> str:
        """The URL of its store of versions."""
        return store_url(self.folder, self.settings.versions)

    @property
    def registry_url(self) -> str:
        """The URL of its registry."""
        return registry_url(self.folder, self.settings.registry)

    @cached_property
    def access(self) -> AccessSettings:
        """How to reach its topics."""
        settings = self.settings
        bytes_max = max(settings.events.record_bytes_max, settings.samples.message_bytes_max)
        reach_ms = _ms(settings.topics.reach_s)
        return AccessSettings(unreachable_after_ms=reach_ms, record_bytes_max=bytes_max, kafka=settings.kafka)

    @cached_property
    def writer_settings(self) -> WriterSettings:
        """How to write its topics."""
        topics = self.settings.topics
        return WriterSettings(fsync=topics.fsync, delivery_timeout_ms=_ms(topics.delivery_timeout_s))

    def first_window(self, watermarks_ms: Sequence[int]) -> str:
        """Say when the first window of first predictions closes, from the watermarks of versions."""
        width_s, wait_s = self.settings.validation.windows_s[0], min(group.window_s for group in self.app.groups)
        if not watermarks_ms:
            return (
                f"figures come about {width_s + wait_s:g} s after the first impressions, when the first window "
                f"closes (a label is final after window_s = {wait_s})"
            )
        closes_ms = (watermarks_ms[0] // (width_s * 1_000) + 1) * width_s * 1_000 + wait_s * 1_000
        return (
            f"the first window closes once samples are complete up to about {time_text(closes_ms)} UTC (a label is "
            f"final after window_s = {wait_s}); the newest version has samples up to {time_text(watermarks_ms[-1])} UTC"
        )

    def open_topic(self, topic: str) -> Topic:
        """Open a topic.

        Raises:
            TopicMissing: The topic does not exist.
            TopicUnreachable: The topic did not answer within `topics.reach_s`.
        """
        return open_topic(self.topic_url(topic), self.access)


def load_app(folder: Path | str, overrides: Sequence[str] | str = ()) -> AppFolder:
    """Load an application from its folder; `overrides` replace settings of app.toml, as on the command line.

    Raises:
        ConfigError: There is no app.py, or app.toml is invalid.
        SpecError: app.py fails, has no `app`, loads a heavy package, or contradicts itself.
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
        del sys.modules[module.__name__]  # so that a corrected file is read again
        raise
    return AppFolder(app, path, read_settings(Settings, path / "app.toml", overrides))


def store_url(folder: Path, settings: VersionSettings) -> str:
    """Return STREAMLEARN_STORE, `versions.store`, or a folder beside app.toml."""
    explicit = os.environ.get("STREAMLEARN_STORE") or settings.store
    return explicit or f"{folder.resolve().as_uri()}/.streamlearn/versions"


def registry_url(folder: Path, settings: RegistrySettings) -> str:
    """Return STREAMLEARN_REGISTRY, `registry.url`, or a file beside app.toml."""
    explicit = os.environ.get("STREAMLEARN_REGISTRY") or settings.url
    return explicit or f"sqlite://{folder.resolve()}/.streamlearn/registry.db"


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


def app_module(folder: Path | str, name: str) -> ModuleType:
    """Import a module of an application's folder, such as "history".

    Its relative imports reach modules of the same folder, never those of another application.

    Raises:
        ConfigError: The module does not exist.
        SpecError: The module fails.
    """
    path = Path(folder).resolve()
    file = path / f"{name}.py"
    if not file.is_file():
        message = f"{folder} has no {name}.py"
        raise ConfigError(message, help=f"name the folder of an application that has a {name}.py")
    package = f"streamlearn_folder_{fingerprint(str(path))}"
    if package not in sys.modules:
        sys.modules[package] = _package_of(package, path)
    importlib.invalidate_caches()  # the file may be new
    try:
        return importlib.import_module(f"{package}.{name}")
    except StreamlearnError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"{file}:{lines[-1]}" if lines else str(file)
        message = f"{where} failed: {type(error).__name__}: {error}"
        raise SpecError(message, help="run it alone with python to see more") from error


def _package_of(name: str, path: Path) -> ModuleType:
    # Created by hand: the folder needs no __init__.py, and none is executed.
    package = ModuleType(name)
    package.__path__ = [str(path)]
    package.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    package.__spec__.submodule_search_locations = [str(path)]
    return package
