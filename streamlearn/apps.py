"""An application: a folder with app.py (what it is), app.toml (where and how much) and perhaps a model.py.

Loading one never loads TensorFlow: ingest workers read applications too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from streamlearn.config import read_settings
from streamlearn.errors import ConfigError, SpecError, StreamlearnError
from streamlearn.features import FeatureSpec, Label, LabelGroup, window_settings_id
from streamlearn.features.labels import check_labels
from streamlearn.features.names import check_name, fingerprint
from streamlearn.settings import Settings
from streamlearn.topics import AccessSettings, KafkaSecurity, Topic, open_topic

__all__ = ["App", "AppFolder", "load_app"]

_MODEL = re.compile(r"[a-z][a-z0-9_]*|[a-z_][a-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_HEAVY = ("tensorflow", "apache_beam", "kafka")


@dataclass(frozen=True)
class App:
    """What an application is, apart from where it runs.

    Attributes:
        name: MODEL on a command line, and the prefix of its topics.
        features: What a request and an item look like.
        groups: The windows in which labels are decided.
        labels: What is predicted, in the order of every score vector.
        model: A ready-made model's name, or "module:Class" of a module beside app.py. Only the trainer
            resolves it.
    """

    name: str
    features: FeatureSpec
    groups: tuple[LabelGroup, ...]
    labels: tuple[Label, ...]
    model: str = "dcn_v2"

    def __post_init__(self) -> None:
        """Refuse an application that contradicts itself.

        Raises:
            SpecError: With the first contradiction found.
        """
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "labels", tuple(self.labels))
        check_name("app", self.name)
        check_labels(self.groups, self.labels)
        if not _MODEL.fullmatch(self.model):
            message = f"model {self.model!r} is neither a ready-made model's name nor MODULE:CLASS"
            raise SpecError(message, help='for example model="dcn_v2" or model="model:MyModel"')

    @cached_property
    def window_settings(self) -> str:
        """Changes when the same events would give other samples."""
        return window_settings_id(self.groups, self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when versions trained before could not be continued: other features or other labels."""
        return fingerprint([self.features.fingerprint, [label.name for label in self.labels]])

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions its labels are made of, each once."""
        return tuple(dict.fromkeys(label.action for label in self.labels))


@dataclass(frozen=True)
class AppFolder:
    """An application with its folder and its settings."""

    app: App
    folder: Path
    settings: Settings

    def topic_url(self, topic: str) -> str:
        """Where one of its topics is.

        Args:
            topic: The field of `settings.topics` that may name it: "impressions", "actions", "samples", ...
        """
        explicit: str = getattr(self.settings.topics, topic)
        if explicit:
            return explicit
        root = self.settings.topics.root or f"{self.folder.resolve().as_uri()}/.streamlearn/topics"
        return f"{root.rstrip('/')}/{self.app.name}.{topic.replace('_', '-')}"

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
        return AccessSettings(
            unreachable_after_ms=round(self.settings.topics.reach_s * 1000), kafka=security
        )

    def open_topic(self, topic: str) -> Topic:
        """Open one of its topics; see `topic_url` for their names.

        Raises:
            TopicMissing: It was never created.
            TopicUnreachable: Nobody answered within `topics.reach_s`.
        """
        return open_topic(self.topic_url(topic), self.access)


def load_app(folder: Path | str, overrides: Sequence[str] = ()) -> AppFolder:
    """Load an application from its folder.

    Args:
        folder: The folder that holds app.py.
        overrides: Settings laid over app.toml, as on the command line.

    Raises:
        ConfigError: There is no app.py, or app.toml is at fault.
        SpecError: app.py fails, has no `app`, loads a heavy package, or declares a contradiction.
    """
    path = Path(folder)
    file = path / "app.py"
    if not file.is_file():
        message = f"{path} is no application: it has no app.py"
        raise ConfigError(message, help="name the folder of an application, such as examples/kuairand")
    app = _import_app(file)
    return AppFolder(app, path, read_settings(Settings, path / "app.toml", overrides))


def _import_app(file: Path) -> App:
    # A name of its own, so that two applications in one process do not meet in sys.modules.
    name = f"streamlearn_app_{fingerprint(str(file.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    loaded_before = {heavy for heavy in _HEAVY if heavy in sys.modules}
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return _app_of(file, module, loaded_before)
    except StreamlearnError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        message = f"{file} failed: {type(error).__name__}: {error}"
        raise SpecError(
            message, help="an app.py only declares; run it alone with python to see more"
        ) from error


def _app_of(file: Path, module: ModuleType, loaded_before: set[str]) -> App:
    for heavy in _HEAVY:
        if heavy in sys.modules and heavy not in loaded_before:
            message = f"{file} loads {heavy}"
            hint = "app.py is read by every process; keep models in model.py and name them as MODULE:CLASS"
            raise SpecError(message, help=hint)
    app = getattr(module, "app", None)
    if not isinstance(app, App):
        message = f"{file} declares no application: `app` is {type(app).__name__}"
        raise SpecError(message, help="assign app = App(name=..., features=..., groups=..., labels=...)")
    return app
