"""Settings and metrics that pages name are there: one that was given another name is found in what people read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from streamlearn.config import fields_of
from streamlearn.settings import Settings
from tools.declared_metrics import declared_metrics

ROOT = Path(__file__).parents[2]
PAGES = [
    name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    if name != "CHANGELOG.md"  # which names what there was
]
SETTINGS = {field.path for field in fields_of(Settings)}
SECTIONS = {path.partition(".")[0] for path in SETTINGS}
METRICS = {name for metric in declared_metrics() for name in (metric.name, *metric.series)}
# Of a section's name and no setting: attributes of a Publisher, and a setting of Kafka's topics.
OTHERS = {"publisher.obey", "publisher.requests", "retention.ms", "features.pack", "features.keys_of"}


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_a_page_names_are_settings(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`([a-z_]+\.[a-z_0-9]+)(?: = [^`]*)?`", text)) | set(
        re.findall(r"--set[ =]([\w.]+)=", text)
    )
    assert not {name for name in named if name.partition(".")[0] in SECTIONS} - SETTINGS - OTHERS - _files(named)


def _files(named: set[str]) -> set[str]:
    return {name for name in named if name.endswith((".py", ".toml", ".json", ".md", ".rs"))}


@pytest.mark.parametrize("page", PAGES)
def test_metrics_that_a_page_names_are_declared(page: str) -> None:
    named = set(re.findall(r"\bstreamlearn_[a-z_0-9]+[a-z0-9]\b", (ROOT / page).read_text()))
    assert not named - METRICS


def test_names_are_found_in_pages() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    assert len(re.findall(r"`publisher\.publish_interval_s`", text)) > 0
    assert len(set(re.findall(r"\bstreamlearn_\w+_total\b", text))) > 30
