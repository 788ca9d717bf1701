"""The list of metrics is whole: what processes tell Prometheus is in it, and what cannot be read is an error."""

from __future__ import annotations

import re

import pytest
from prometheus_client import REGISTRY

from streamlearn.settings.up import UpSettings
from streamlearn.supervision.meters import Meters as UpMeters
from streamlearn.trainer.meters import Meters as TrainerMeters
from streamlearn.versions.replica.replica_meters import ReplicaMeters
from tools.declared_metrics import ROOT, declared_in, declared_metrics
from tools.metrics_page import PROCESSES

IMPORT = "from streamlearn.telemetry import counter, gauge, histogram as spread\n"


def test_a_declaration_is_read_as_it_is_made() -> None:
    source = (
        IMPORT
        + """
LABELS = ["topic"]
def make(self):
    newest, what = "of late", "stage"
    counter("ps", "told", f"Told {newest}.", LABELS)
    gauge("ps", "held", "bytes", help="Held.", labels=("a", what))
    spread("ps", "took", "seconds", "Took.", (1.0, 2.0), labels=["verb"])
"""
    )
    told, held, took = declared_in(source, "here")
    assert (told.name, told.kind, told.labels, told.help) == (
        "streamlearn_ps_told_total",
        "counter",
        ("topic",),
        "Told of late.",
    )
    assert (held.name, held.kind, held.unit, held.labels) == (
        "streamlearn_ps_held_bytes",
        "gauge",
        "bytes",
        ("a", "stage"),
    )
    assert took.series == tuple(f"streamlearn_ps_took_seconds_{end}" for end in ("bucket", "sum", "count"))
    assert took.labels == ("verb",)


@pytest.mark.parametrize(
    "call",
    [
        'def make(noun):\n    counter("ps", noun, "Told.")',
        'for noun in ("a", "b"):\n    counter("ps", noun, "Told.")',
        'noun = "a"\nnoun = "b"\ncounter("ps", noun, "Told.")',
        'counter("ps", "told", "Told.", sorted(labels))',
        '*others, noun = "a", "b", "c"\ncounter("ps", noun, "Told.")',
    ],
)
def test_a_declaration_that_cannot_be_read_is_an_error_and_names_its_line(call: str) -> None:
    with pytest.raises(ValueError, match=r"^here:\d: "):
        list(declared_in(IMPORT + call, "here"))


def test_calls_of_other_things_of_that_name_are_none() -> None:
    assert not list(declared_in('from elsewhere import counter\ncounter("ps", noun, "Told.")', "here"))


def test_every_component_has_its_process() -> None:
    assert {one.component for one in declared_metrics()} == set(PROCESSES)


def test_every_metric_of_this_process_is_declared() -> None:
    """All that is there by now, be it of tests before, and the metrics of three processes at least."""
    TrainerMeters(), ReplicaMeters(), UpMeters(UpSettings())
    declared = {name: one for one in declared_metrics() for name in (one.name, one.name.removesuffix("_total"))}
    names = {family.name: family for family in REGISTRY.collect() if family.name.startswith("streamlearn_")}
    own = {name: family for name, family in names.items() if "_test" not in name}
    assert len(own) > 20
    assert not set(own) - set(declared)
    for name, family in own.items():
        assert (family.type, family.documentation) == (declared[name].kind, declared[name].help)


def test_only_telemetry_makes_metrics() -> None:
    """So what is declared is all there is."""
    made = re.compile(r"\b(Counter|Gauge|Histogram|Summary|Info|Enum)(MetricFamily)?\(")
    files = [file for file in (ROOT / "streamlearn").rglob("*.py") if "prometheus_client" in file.read_text()]
    assert ROOT / "streamlearn" / "telemetry.py" in files
    wrong = [file.name for file in files if file.name != "telemetry.py" and made.search(file.read_text())]
    assert not wrong, "declare metrics with streamlearn.telemetry's functions"


def test_telemetry_is_imported_by_its_functions() -> None:
    """Calls by way of the module would not be seen."""
    whole = re.compile(
        r"import streamlearn\.telemetry|from streamlearn import (\w+, )*telemetry|telemetry\.(counter|gauge|histogram)"
    )
    files = [*(ROOT / "streamlearn").rglob("*.py")]
    assert not [file.name for file in files if whole.search(file.read_text())]
