"""Two releases that follow each other: what one wrote the other reads, and they run side by side."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.testing import wait_until
from tools.release.build import build_wheel
from tools.release.licences import ROOT, TARGETS
from tools.services.cache import Cache

# The newest tag is the release before. Until there is one: a state of the source from before computed features.
BEFORE = "1c22d2cef7b7185f4283e07e4fe4e3ae793119d1"

_WAIT_S, _COMMAND_S_MAX = 300.0, 300.0
_APP = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

app = App(
    name="shop",
    features=FeatureSpec(
        slots=(Slot("user_id", "user"), Slot("product_id", "item"), Slot("brand", "item", value="str", table="text")),
        item_id="product_id",
    ),
    groups=(LabelGroup("fast", wait_s=1, window_s=5),),
    labels=(Label("click", action="click", group="fast"),),
)
"""
_SETTINGS = """
[ingest]
prism_location = "{prism}"

[publisher]
publish_interval_s = 1.0

[front]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
deadline_ms = 30_000

[telemetry]
listen = ""
"""
_PRODUCE = """
import sys, time
from streamlearn.apps import load_app
from streamlearn.events import Producer

begin = int(sys.argv[1])
now_ms = time.time_ns() // 1_000_000
with Producer(load_app("shop")) as producer:
    for number in range(begin, begin + 100):
        items = [{"product_id": number % 7, "brand": "acme"}, {"product_id": 70, "brand": "blau"}]
        producer.impression(f"q{number}", now_ms - 3_000, user={"user_id": number % 5}, items=items)
        producer.action(f"q{number}", now_ms - 2_000, number % 7, "click")
"""
_ROW = {
    "user": {"user_id": 3},
    "items": [{"product_id": 2, "brand": "acme"}, {"product_id": 70, "brand": "blau"}],
}
_UP, _SERVED = r"shop is up: .*node-1 http ([^,\s]+)", r"is served at grpc \S+, http (\S+):"


class Release:
    """A wheel's files before all others that Python finds; other packages are those of the lock file."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        self._variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
        self._folder = folder

    def run(self, place: Path, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=place, env=self._variables, capture_output=True, text=True, check=False,
            timeout=_COMMAND_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout[-1_000:]}{done.stderr[-3_000:]}"
        return done.stdout

    def verb(self, place: Path, *words: str) -> str:
        return self.run(place, "-m", "streamlearn", *words)

    @contextmanager
    def running(self, place: Path, pattern: str, *words: str) -> Iterator[str]:
        """A verb for as long as the block, which gets the group of a pattern that it printed."""
        out = place / f"{'-'.join(words)}-{self._folder.name}.out"
        with out.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "streamlearn", *words], cwd=place, env=self._variables, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

        def is_said() -> bool:
            assert process.poll() is None, out.read_text()
            return re.search(pattern, out.read_text()) is not None

        try:
            wait_until(is_said, f"{pattern!r} in {out}", _WAIT_S)
            yield re.findall(pattern, out.read_text())[0]
            process.terminate()
            assert process.wait(_WAIT_S) == 0, out.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def commit_before() -> str:
    """The commit of the release before."""
    described = ["git", "describe", "--tags", "--abbrev=0", "HEAD^"]
    tag = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    found = subprocess.run(
        ["git", "rev-parse", "--verify", f"{tag or BEFORE}^{{commit}}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        if not tag and Cache().find(f"wheel-{BEFORE}"):
            return BEFORE  # its wheel was built from a clone that has it
        pytest.fail(
            f"this clone lacks {tag or BEFORE}, the release before: git fetch --unshallow --tags", pytrace=False
        )
    return found.stdout.strip()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The release before, built once on a machine."""
    commit = commit_before()

    def build(entry: Path) -> None:
        source = entry / "source"
        source.mkdir()
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", source], input=packed, check=True)
        target = next(target for target in TARGETS if target.startswith(os.uname().machine))
        build_wheel(target, source, entry)
        subprocess.run(["rm", "-rf", source], check=True)

    (wheel,) = Cache().get(f"wheel-{commit}", build).glob("*.whl")
    return Release(wheel, tmp_path_factory.mktemp("releases") / "before")


@pytest.fixture(scope="module")
def now(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(wheel, tmp_path_factory.mktemp("releases") / "now")


def ask(http: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{http}/score", json.dumps(_ROW).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def same_scores(one: str, other: str, least: int) -> int:
    """Wait until two nodes answer with one version that is new enough, check their scores, and return it."""
    pairs = []

    def are_equal() -> bool:
        pairs.append((ask(one), ask(other)))
        versions = {answer["version"] for answer in pairs[-1]}
        return len(versions) == 1 and min(versions) >= least

    wait_until(are_equal, f"one version from {least} on at both nodes", _WAIT_S)
    (mine, yours) = pairs[-1]
    assert mine["scores"]["click"] == pytest.approx(yours["scores"]["click"], abs=1e-5)
    return int(mine["version"])


@pytest.fixture
def place(tmp_path: Path, prism: Path) -> Path:
    """A folder with an application, settings that both releases know, and a producer."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(_APP)
    (tmp_path / "shop" / "app.toml").write_text(_SETTINGS.format(prism=prism))
    (tmp_path / "produce.py").write_text(_PRODUCE)
    return tmp_path


def test_one_release_goes_on_from_the_other_and_their_nodes_answer_alike(
    before: Release, now: Release, place: Path
) -> None:
    where = "import streamlearn; print(streamlearn.__file__)"
    assert before.run(place, "-c", where) != now.run(place, "-c", where)
    before.verb(place, "topics", "shop", "--create", "2")
    with before.running(place, _UP, "up", "shop") as old_node:
        before.run(place, "produce.py", "0")
        # A node of this release beside the trainer of the one before: upgrades begin with nodes.
        with now.running(place, _SERVED, "serve", "shop") as new_node:
            learned = same_scores(old_node, new_node, 2)
    # Store, topics and registry, as the release before left them.
    now.verb(place, "verify", "--app", "shop")
    assert re.search(r"^ +\d+ .* active", now.verb(place, "versions", "--app", "shop"), re.M)
    assert '"brand": "acme"' in now.verb(place, "peek", "shop", "--limit", "1")
    assert now.verb(place, "peek", "shop", "samples", "--limit", "1")
    # A node of the release before beside this trainer: not all are upgraded yet, or one was put back.
    with (
        now.running(place, _UP, "up", "shop") as new_node,
        before.running(place, _SERVED, "serve", "shop") as old_node,
    ):
        now.run(place, "produce.py", "100")
        newest = same_scores(old_node, new_node, learned + 1)
        before.run(place, "produce.py", "200")
        same_scores(old_node, new_node, newest + 1)
        # Both command lines move nodes of both.
        for release in (before, now):
            release.verb(place, "rollback", "--app", "shop", "--to", str(learned), "--reason", "a test of upgrades")
            wait_until(
                lambda: [ask(node)["version"] for node in (old_node, new_node)] == [learned] * 2,
                f"both answer with version {learned}", _WAIT_S,
            )  # fmt: skip
