"""The settings there are: one section a part, each field with its unit in its name and when to change it.

How they are read from TOML, `--set` and defaults is `config`'s business.
"""

from streamlearn.settings.console import ConsoleSettings
from streamlearn.settings.events import EventSettings, ReplaySettings, SampleSettings
from streamlearn.settings.front import FrontSettings
from streamlearn.settings.impressions import ImpressionsSettings
from streamlearn.settings.ingest import IngestSettings
from streamlearn.settings.join import JoinSettings, MarksSettings
from streamlearn.settings.ps import PsSettings
from streamlearn.settings.publisher import JudgeSettings, PublisherSettings, RetentionSettings
from streamlearn.settings.serving import ServingSettings
from streamlearn.settings.tables import TableSettings
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.settings.topics import KafkaSettings, TopicsSettings
from streamlearn.settings.trainer import TrainerSettings, ValidationSettings
from streamlearn.settings.tree import Settings
from streamlearn.settings.up import UpSettings
from streamlearn.settings.versions import RegistrySettings, ReplicaSettings, VersionSettings

__all__ = [
    "ConsoleSettings",
    "EventSettings",
    "FrontSettings",
    "ImpressionsSettings",
    "IngestSettings",
    "JoinSettings",
    "JudgeSettings",
    "KafkaSettings",
    "MarksSettings",
    "PsSettings",
    "PublisherSettings",
    "RegistrySettings",
    "ReplaySettings",
    "ReplicaSettings",
    "RetentionSettings",
    "SampleSettings",
    "ServingSettings",
    "Settings",
    "TableSettings",
    "TelemetrySettings",
    "TopicsSettings",
    "TrainerSettings",
    "UpSettings",
    "ValidationSettings",
    "VersionSettings",
]
