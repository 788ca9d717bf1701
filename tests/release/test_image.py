"""The image of a node: built from the wheel, and run as nobody with a root that may only be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlearn.testing import wait_until
from tests.availability import lacks
from tools.release.build import build_image
from tools.release.licences import ROOT

_WAIT_S = 300.0
_USER = 10_001
_ROW = {"user": {"user_id": 7, "country": "BR"}, "items": [{"item_id": 4, "category": 5, "price": 20}]}
_HIDDEN = {"network", "cgroup"}  # the host's own; a host of mixed control groups lets runc make none


def call(*words: object, **more: Any) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{words}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    return str(done.stdout).strip()


@pytest.fixture(scope="module")
def image(wheel: Path) -> str:
    missing = [name for name in ("buildah", "debootstrap", "runc") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        lacks(f"no image can be built and run here without {', '.join(missing)}")
    return build_image("node", wheel)


@pytest.fixture(scope="module")
def config(image: str) -> dict[str, Any]:
    described = json.loads(call("buildah", "inspect", "--type", "image", image))["Docker"]["config"]
    assert isinstance(described, dict)
    return described


@pytest.fixture
def root(image: str) -> Iterator[Path]:
    """The files of a container."""
    container = call("buildah", "from", image)
    try:
        yield Path(call("buildah", "mount", container))
    finally:
        call("buildah", "rm", container)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An application with a version, which belongs to the image's user."""
    folder = tmp_path / "shop"
    for words in (("new", folder), ("topics", folder, "--create", 1), ("train", folder, "--until-offset", "end")):
        call(sys.executable, "-m", "streamlearn", *words)
    call("chown", "-R", f"{_USER}:{_USER}", folder)
    return folder


def bundle(folder: Path, root: Path, config: dict[str, Any], shop: Path, words: list[str]) -> None:
    """Write what runc runs: the image as its own configuration says, with volumes in memory."""
    call("runc", "spec", cwd=folder)
    spec = json.loads((folder / "config.json").read_text())
    spec["root"] = {"path": str(root), "readonly": True}
    user, group = map(int, config["User"].split(":"))
    spec["process"] |= {
        "terminal": False, "args": [*config["Entrypoint"], *words], "env": config["Env"],
        "cwd": config["WorkingDir"], "user": {"uid": user, "gid": group},
    }  # fmt: skip
    mode = ["nosuid", "nodev", "mode=0700", f"uid={user}", f"gid={group}"]
    spec["mounts"] += [
        {"destination": name, "type": "tmpfs", "source": "tmpfs", "options": mode} for name in config["Volumes"]
    ]
    bound = {"destination": "/srv/app", "type": "bind", "source": str(shop), "options": ["rbind", "rw"]}
    spec["mounts"] += [bound]
    spec["linux"]["namespaces"] = [each for each in spec["linux"]["namespaces"] if each["type"] not in _HIDDEN]
    (folder / "config.json").write_text(json.dumps(spec))


def test_it_says_who_it_is_what_it_needs_and_how_it_is_probed(config: dict[str, Any]) -> None:
    assert config["User"] == f"{_USER}:{_USER}"
    assert config["Entrypoint"] == ["tini", "--", "streamlearn"]
    assert config["Cmd"] == ["serve", "/srv/app"]
    assert set(config["Volumes"]) == {"/tmp", "/var/cache/streamlearn"}
    assert config["Healthcheck"]["Test"] == ["CMD", "streamlearn", "probe"]


def test_a_node_answers_is_probed_and_drains(root: Path, config: dict[str, Any], shop: Path, tmp_path: Path) -> None:
    folder, name = tmp_path / "bundle", f"streamlearn-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    words = ["serve", "/srv/app", *listen, "--set", "front.deadline_ms=30000"]
    bundle(folder, root, config, shop, words)

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["runc", "exec", name, *words], capture_output=True, text=True, check=False)

    out = folder / "out"
    with out.open("w") as file:
        process = subprocess.Popen(
            ["runc", "run", "--bundle", str(folder), name], stdout=file, stderr=subprocess.STDOUT
        )

    def served() -> str:
        assert process.poll() is None, out.read_text()
        return next(iter(re.findall(r"is served at grpc \S+, http (\S+):", out.read_text())), "")

    try:
        wait_until(lambda: bool(served()), f"{out} says where it is served", _WAIT_S)
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{served()}/score", json.dumps(_ROW).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["version"] == 1
        wait_until(lambda: inside("streamlearn", "probe").returncode == 0, "its probe succeeds", _WAIT_S)
        assert inside("id", "-u").stdout.strip() == str(_USER)
        assert "Read-only file system" in inside("touch", "/opt/anything").stderr
        absent = inside("python", "-c", "import streamlearn, apache_beam").stderr
        assert "No module named 'apache_beam'" in absent, absent
        call("runc", "kill", name, "TERM")
        assert process.wait(_WAIT_S) == 0, out.read_text()
    finally:
        if process.poll() is None:
            subprocess.run(["runc", "kill", name, "KILL"], check=False)
            process.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "0 words, and KIND and WHEEL are needed"),
        (("brain", "wheel"), "brain is not a kind of image"),
        (("node", "/nowhere.whl"), "the wheel /nowhere.whl does not exist"),
    ],
)
def test_the_script_says_what_it_needs(words: tuple[str, ...], said: str) -> None:
    script = ROOT / "packaging" / "container" / "build.sh"
    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {said}")
