"""The dashboard and the alerts ask for metrics and labels that are declared; runbooks say what to do about each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.gateway import ENVOY_SERIES
from tools.dashboard import ROWS, dashboard_json
from tools.declared_metrics import ROOT, declared_metrics

SERIES = {series: metric for metric in declared_metrics() for series in metric.series}
# What the scrape configuration and Prometheus itself give to every series.
OUTER_LABELS = {"app", "process", "job", "instance", "le"}
# Labels of series that are not declared: Prometheus' own, and those that `streamlearn access` passes on.
FOREIGN = {"up": {"process"}, **{series: {"envoy_cluster_name"} for series in ENVOY_SERIES}}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard_json())["panels"]
    return [one for one in found if one["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "packaging/prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((rule["alert"], rule["expr"]) for rule in alerts())


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_asks_for_metrics_and_labels_that_there_are(where: str, query: str) -> None:
    asked = re.findall(r"\b(streamlearn_\w+|envoy_\w+|up)\b", re.sub(r"\{.*?\}", "", query))
    assert asked, where
    assert not set(asked) - set(SERIES) - set(FOREIGN)
    labels = {label for one in asked for label in FOREIGN.get(one) or SERIES[one].labels} | OUTER_LABELS
    named = {label for inside in re.findall(r"\{(.*?)\}", query) for label in re.findall(r"(\w+)\s*[=!]", inside)}
    named |= {label.strip() for inside in re.findall(r"\bby \((.*?)\)", query) for label in inside.split(",")}
    assert not named - labels


@pytest.mark.parametrize("query", [query for _, query in queries()])
def test_counters_are_asked_for_by_what_they_gain_and_histograms_by_quantile(query: str) -> None:
    for series in re.findall(r"\b(streamlearn_\w+)\b", query):
        if SERIES[series].kind == "counter":
            assert re.search(rf"(rate|increase)\({series}\b", query)
        if SERIES[series].kind == "histogram":
            assert f"rate({series}" in query
            assert series.endswith("_bucket")
            assert "histogram_quantile" in query


def test_the_dashboard_shows_every_part_of_the_loop() -> None:
    shown = {SERIES[one].component for panel in panels() for one in _asked(panel)}
    assert shown >= {"ingest", "trainer", "publisher", "serving", "ps"}
    assert len(panels()) == sum(len(row.panels) for row in ROWS)


def _asked(panel: dict[str, Any]) -> set[str]:
    return {name for one in panel["targets"] for name in re.findall(r"\b(streamlearn_\w+)\b", one["expr"])}


def test_charts_do_not_lie_on_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard_json())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_query_of_the_dashboard_is_held_to_the_chosen_application() -> None:
    for panel in panels():
        for target in panel["targets"]:
            selectors = re.findall(r"\b(?:streamlearn_\w+|up)(\{.*?\})?", target["expr"])
            assert all('app=~"$app"' in one for one in selectors), target["expr"]


def test_legends_name_labels_that_their_query_gives() -> None:
    for panel in panels():
        for target in panel["targets"]:
            grouped = re.findall(r"\bby \((.*?)\)", target["expr"])
            [*metrics] = {SERIES[one] for one in re.findall(r"\b(streamlearn_\w+)\b", target["expr"])}
            given = {label.strip() for inside in grouped for label in inside.split(",")} if grouped else OUTER_LABELS
            given = given if grouped else given | {label for one in metrics for label in one.labels}
            assert not set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - given, target


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_every_alert_has_a_runbook_that_names_it(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    section = _section((ROOT / path).read_text(), anchor)
    assert f"`{rule['alert']}`" in section, f"{path}#{anchor} does not say what to do when {rule['alert']} comes"


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_what_an_alert_says_names_labels_that_it_has(rule: dict[str, Any]) -> None:
    kept = {label.strip() for inside in re.findall(r"\bby \((.*?)\)", rule["expr"]) for label in inside.split(",")}
    labels = [{*SERIES[one].labels} for one in re.findall(r"\b(streamlearn_\w+)\b", rule["expr"])]
    labels += [FOREIGN.get(one, set()) for one in re.findall(r"\b(envoy_\w+)\b", rule["expr"])]
    has = kept or {label for some in labels for label in some} | OUTER_LABELS
    assert not set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - has


def _section(page: str, anchor: str) -> str:
    """What stands below the heading that has that anchor, up to the next of its level."""
    headings = [(one.start(), len(one[1]), one[2]) for one in re.finditer(r"^(#+) (.+)$", page, flags=re.M)]
    for at, (begin, level, title) in enumerate(headings):
        if re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") == anchor:
            ends = [one[0] for one in headings[at + 1 :] if one[1] <= level]
            return page[begin : ends[0] if ends else len(page)]
    message = f"no heading gives #{anchor}"
    raise AssertionError(message)


def test_alerts_that_runbooks_name_exist() -> None:
    names = {rule["alert"] for rule in alerts()}
    assert len(names) == len(alerts())
    for page in (ROOT / "docs").rglob("*.md"):
        assert not set(re.findall(r"`(Streamlearn\w+)`", page.read_text())) - names - {"StreamlearnError"}


def test_the_scrape_configuration_gives_what_queries_ask_for() -> None:
    found = yaml.safe_load((ROOT / "packaging/prometheus/prometheus.yml").read_text())
    assert found["rule_files"] == ["alerts.yml"]
    [job] = found["scrape_configs"]
    assert job["job_name"] == "streamlearn"
    assert all(set(one["labels"]) == {"app", "process"} for one in job["static_configs"])
