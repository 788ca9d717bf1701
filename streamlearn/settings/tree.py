"""The tree of all settings."""

from __future__ import annotations

from msgspec import Struct

from streamlearn.settings.access import GatewaySettings
from streamlearn.settings.console import ConsoleSettings
from streamlearn.settings.events import EventSettings, ReplaySettings, SampleSettings
from streamlearn.settings.features import FeatureSettings
from streamlearn.settings.front import AllowanceSettings, FrontSettings
from streamlearn.settings.impressions import ImpressionsSettings
from streamlearn.settings.ingest import IngestSettings
from streamlearn.settings.join import JoinSettings, MarksSettings
from streamlearn.settings.ps import PsSettings
from streamlearn.settings.publisher import JudgeSettings, PublisherSettings, RetentionSettings
from streamlearn.settings.retrieval import RetrievalSettings
from streamlearn.settings.serving import ServingSettings
from streamlearn.settings.tables import TableSettings
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.settings.topics import KafkaSettings, TopicsSettings
from streamlearn.settings.trainer import TrainerSettings, ValidationSettings
from streamlearn.settings.up import UpSettings
from streamlearn.settings.versions import RegistrySettings, ReplicaSettings, VersionSettings
from streamlearn.settings.workers import WorkersSettings

__all__ = ["Settings"]


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings that app.toml may contain."""

    topics: TopicsSettings = TopicsSettings()
    kafka: KafkaSettings = KafkaSettings()
    events: EventSettings = EventSettings()
    samples: SampleSettings = SampleSettings()
    replay: ReplaySettings = ReplaySettings()
    ingest: IngestSettings = IngestSettings()
    join: JoinSettings = JoinSettings()
    marks: MarksSettings = MarksSettings()
    features: FeatureSettings = FeatureSettings()
    tables: TableSettings = TableSettings()
    trainer: TrainerSettings = TrainerSettings()
    workers: WorkersSettings = WorkersSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    validation: ValidationSettings = ValidationSettings()
    versions: VersionSettings = VersionSettings()
    registry: RegistrySettings = RegistrySettings()
    replica: ReplicaSettings = ReplicaSettings()
    publisher: PublisherSettings = PublisherSettings()
    judge: JudgeSettings = JudgeSettings()
    retention: RetentionSettings = RetentionSettings()
    ps: PsSettings = PsSettings()
    serving: ServingSettings = ServingSettings()
    front: FrontSettings = FrontSettings()
    allowance: AllowanceSettings = AllowanceSettings()
    access: GatewaySettings = GatewaySettings()
    impressions: ImpressionsSettings = ImpressionsSettings()
    up: UpSettings = UpSettings()
    console: ConsoleSettings = ConsoleSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
