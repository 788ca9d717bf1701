"""`migrate` and `switch`: a changed application begins with what the old one learned, and takes over its callers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.publisher import Lineage
from streamlearn.testing import wait_until
from streamlearn.versions import Cut, Registry, Store, VersionRef, VersionWriter, open_registry, open_store
from streamlearn.versions.format.manifest import Origin
from streamlearn.versions.pointer.parity import why_not_par
from streamlearn.versions.pointer.registry import Node
from streamlearn.versions.pointer.switch_log import SwitchLog
from tests.replaced import ADDED, folder_of, learned_folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an application with a version, beside which others are made."""
    return learned_folder(tmp_path_factory.mktemp("live"))


@pytest.fixture
def ended(verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs a verb; returns its status, and its output with its error."""
    monkeypatch.delenv("STREAMLEARN_STORE", raising=False)
    monkeypatch.delenv("STREAMLEARN_REGISTRY", raising=False)

    def run(*words: object) -> tuple[int, str]:
        result = verb(*words)
        error = result.exception
        status = getattr(error, "exit_code", result.exit_code)
        said = f"{getattr(error, 'message', '')}\n{getattr(error, 'help', '')}"
        return status, f"{result.output}{said}"

    return run


def following(folder: AppFolder, model: str, ends: ExitStack) -> Registry:
    """A node of an application that stands where the switches say, until the end."""
    registry = ends.enter_context(open_registry(folder.registry_url, model))
    log, over = SwitchLog(open_store(folder.store_url), folder.app.served_name), threading.Event()

    def follow() -> None:
        while not over.wait(0.01):
            state: Any = "aside" if log.newest().why_aside(model) else "ready"
            registry.beat(Node(boot_id=model, name=f"node of {model}", state=state, active=1, wall_ms=1))

    thread = threading.Thread(target=follow)
    thread.start()
    ends.callback(thread.join)
    ends.callback(over.set)
    return registry


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_an_application_is_changed_switched_to_and_switched_back(
    learned: Path, ended: Callable[..., tuple[int, str]], ends: ExitStack
) -> None:
    new = folder_of(learned.parent, "learnable2", ADDED)
    status, said = ended("migrate", new, "--from", learned)
    assert status == 2
    hint = f"streamlearn schema {learned} --out {new}/learnable"
    assert hint in said
    assert ended(*hint.split()[1:])[0] == 0
    folder_of(learned.parent, "learnable2", ADDED, 'old_schemas = ["learnable/impression.avsc"]')
    assert ended("topics", new, "--create", "2")[0] == 0
    status, said = ended("migrate", new, "--from", learned, "--dry-run")
    assert status == 0
    assert "mood" in said
    assert "would begin with version" in said
    assert not list((learned.parent / "store").glob("learnable2/bases/*"))
    status, said = ended("migrate", new, "--from", learned)
    assert status == 0
    assert f"streamlearn switch {new} --to learnable2" in said.replace("\n", " ")
    assert "impressions before" in " ".join(ended("show", new, "1")[1].split())
    # Nobody answers for the new application yet.
    status, said = ended("switch", new, "--to", "learnable2")
    assert status != 0
    assert "no node of 'learnable2' is ready: it has none" in said
    assert "learnable2 has no node that is ready" in ended("switch", new)[1]
    folder = load_app(new)
    old_nodes, _ = following(folder, "learnable", ends), following(folder, "learnable2", ends)
    said = "learnable answers the callers of learnable; learnable2 stands ready beside it"
    wait_until(lambda: ended("switch", new)[1].startswith(said), "nodes that have registered")
    for to, other in (("learnable2", "learnable"), ("learnable", "learnable2"), ("learnable2", "learnable")):
        status, said = ended("switch", learned if to == "learnable" else new, "--to", to)
        assert status == 0, said
        assert f"{to} answers the callers of learnable; {other} stands ready beside it" in said
        assert "ready" in said
        assert "aside" in said
    # A node that does not follow is named, and the switch is not called done.
    deaf = Node(boot_id="deaf", name="deaf", state="ready", active=1, wall_ms=1)
    old_nodes.beat(deaf)
    assert ended("switch", new, "--to", "learnable")[0] == 0
    old_nodes.beat(deaf)
    status, said = ended("switch", new, "--to", "learnable2", "--wait", "0.3")
    assert status == 3
    assert "not every node has followed switch" in said
    assert "deaf" in said
    # The way back does not depend on the registry: the record is written, and it says that nodes are unknown.
    away = f"registry.url=sqlite://{learned}/app.py/registry.db"
    status, said = ended("switch", new, "--to", "learnable", "--wait", "0.1", "--set", away)
    assert (status, SwitchLog(open_store(folder.store_url), "learnable").newest().current) == (3, "learnable"), said
    assert ended("switch", new, "--to", "learnable2", "--wait", "0.1")[0] == 3
    assert ended("switch", new, "--done")[0] == 0
    assert ended("switch", new)[1].startswith("learnable2 answers the callers of learnable\n")
    assert "shop9" in ended("switch", new, "--to", "shop9")[1]


def test_what_can_be_refused_without_a_model_is_refused_before_one_is_built(
    learned: Path, ended: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlearn.models.tensorflow_load.load_tensorflow", lambda: pytest.fail("it was built"))
    same = ended("migrate", learned, "--from", learned)
    assert same == (2, same[1])
    assert "both applications have the name 'learnable'" in same[1]
    new = folder_of(learned.parent, "learnable3", ADDED)
    assert ended("migrate", new, "--from", learned)[0] == 2
    assert ended("schema", learned, "--out", f"{new}/learnable")[0] == 0
    known = 'topics.old_schemas=["learnable/impression.avsc", "learnable/action.avsc"]'
    status, said = ended("migrate", new, "--from", learned, "--version", 999, "--set", known)
    assert status == 1
    assert "version 999" in said


def test_while_an_application_relearns_its_versions_say_why_they_have_no_figures(
    tmp_path: Path, ended: Callable[..., tuple[int, str]]
) -> None:
    old = learned_folder(tmp_path)
    new = folder_of(tmp_path, "learnable2", ADDED, 'old_schemas = ["learnable/impression.avsc"]')
    assert ended("schema", old, "--out", new / "learnable")[0] == 0
    assert ended("topics", new, "--create", "2")[0] == 0
    assert ended("migrate", new, "--from", old, "--relearn")[0] == 0
    said = " ".join(ended("versions", new)[1].split())
    assert "UTC, which learnable has learned: their figures are not comparable, and left out" in said
    assert "not comparable" in json.loads(ended("versions", new, "--json")[1])["relearning"]
    assert json.loads(ended("versions", old, "--json")[1])["relearning"] is None
    assert "not comparable" not in ended("versions", old)[1]


def write_scored(store: Store, model: str, labels: dict[str, float], **origin: Origin) -> VersionRef:
    """A version of a model with the AUC of some labels over one hour."""
    lineage = Lineage(model, fingerprint="features", windows="windows", tables=())
    head = msgspec.structs.replace(lineage.head(run=1, version=1, parent=None), labels=tuple(labels), **origin)
    version = VersionWriter(store, head)
    ends = {f"validation.{label}.until_s": 7_200.0 for label in labels}
    return version.finish(Cut(metrics={f"validation.{label}.auc": auc for label, auc in labels.items()} | ends)).ref


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"click": 0.749, "buy": 0.8}, ""),
        ({"click": 0.749}, ""),  # buy was removed
        ({"click": 0.74}, "AUC of click is 0.7400 and was 0.7500 in the same hour"),
        ({"like": 0.9}, "the new application has no label of the current one"),
    ],
)
def test_labels_that_the_new_application_does_not_have_are_not_compared(
    labels: dict[str, float], why: str, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path / "store"))
    old = write_scored(store, "old", {"click": 0.75, "buy": 0.8})
    write_scored(store, "new", labels, origin=Origin(model="old", version=old, clock_ms=0, is_relearned=True))
    assert why_not_par(store, "old", "new") == why
