"""All settings: one section for each part. A field has its unit in its name, and its description below it.

`config` reads them from TOML, `--set` and defaults.
"""

from streamlearn.settings.events import EventSettings
from streamlearn.settings.ps import PsSettings
from streamlearn.settings.publisher import JudgeSettings, PublisherSettings, RetentionSettings
from streamlearn.settings.serving import ServingSettings
from streamlearn.settings.trainer import ValidationSettings
from streamlearn.settings.tree import Settings

__all__ = [
    "EventSettings",
    "JudgeSettings",
    "PsSettings",
    "PublisherSettings",
    "RetentionSettings",
    "ServingSettings",
    "Settings",
    "ValidationSettings",
]
