"""Settings and metrics that pages name are there: one that was given another name is found in what people read."""

from __future__ import annotations

import ast
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


TITLES = set(re.findall(r'^ +- "?([^":]+).*?"?: [a-z/-]+\.md$', (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))


def _said(file: Path) -> list[str]:
    """The texts in a module that are no docstrings."""
    tree = ast.parse(file.read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documents)
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_messages_point_at_pages_by_title_because_an_installed_package_has_no_docs_folder() -> None:
    said = [text for file in (ROOT / "streamlearn").rglob("*.py") for text in _said(file)]
    assert not [text for text in said if "docs/" in text or ".md" in text]
    named = {title for text in said for title in re.findall(r'"([^"]+)" in the documentation', text)}
    assert len(named) > 8
    assert not named - TITLES


def test_names_are_found_in_pages() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    assert len(re.findall(r"`publisher\.publish_interval_s`", text)) > 0
    assert len(set(re.findall(r"\bstreamlearn_\w+_total\b", text))) > 30
