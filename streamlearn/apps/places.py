"""Places: where an application's versions and its registry are, from settings, environment and folder."""

from __future__ import annotations

import os
from pathlib import Path

from streamlearn.settings.versions import RegistrySettings, VersionSettings

__all__ = ["registry_url", "store_url"]


def store_url(folder: Path, settings: VersionSettings) -> str:
    """Where versions are: STREAMLEARN_STORE, `versions.store`, or a folder beside app.toml."""
    explicit = os.environ.get("STREAMLEARN_STORE") or settings.store
    return explicit or f"{folder.resolve().as_uri()}/.streamlearn/versions"


def registry_url(folder: Path, settings: RegistrySettings) -> str:
    """Where nodes and operators meet: STREAMLEARN_REGISTRY, `registry.url`, or a file beside app.toml."""
    explicit = os.environ.get("STREAMLEARN_REGISTRY") or settings.url
    return explicit or f"sqlite://{folder.resolve()}/.streamlearn/registry.db"
