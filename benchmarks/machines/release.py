"""What a machine gets of a release: an installation of the wheel, or an image with it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.release.build import build_image, this_wheel
from tools.release.environment import Environment

__all__ = ["image", "installation"]

Note = Callable[[str], None]

# To the application that `streamlearn new` makes.
_REQUEST = {
    "user": {"user_id": 7, "country": "BR"},
    "items": [{"item_id": 4, "category": 5, "price": 20}, {"item_id": 9, "category": 1, "price": 3}],
}
_SERVED = r"is served at grpc \S+, http (\S+):"


def installation(note: Note) -> dict[str, float]:
    """From `pip install WHEEL[serve]` in an empty environment to the first answer, without a cache of packages."""
    wheel = this_wheel()
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as name:
        place = Path(name)
        environment = Environment(place / "environment")
        begin = time.perf_counter()
        environment.pip("install", "--no-cache-dir", f"{wheel}[serve]")
        installed_s = time.perf_counter() - begin
        note(f"installed after {installed_s:.1f} s")
        for words in ("new shop", "topics shop --create 1", "train shop --until-offset end"):
            done = environment.run(place, "streamlearn", *words.split())
            if done.returncode:
                message = f"streamlearn {words} ended with {done.returncode}: {done.stderr[-2_000:]}"
                raise ServiceError(message)
        note("an untrained version is written")
        words = "serve shop --listen 127.0.0.1:0 --http 127.0.0.1:0"
        with environment.running(place, _SERVED, "streamlearn", *words.split()) as http:
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"http://{http}/score", json.dumps(_REQUEST).encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                note(f"answered: {answer.read().decode()}")
            answered_s = time.perf_counter() - begin
        figures = {"wheel_install_s": installed_s, "wheel_to_answer_s": answered_s}
        return {**figures, "environment_gb": _bytes(environment.folder) / 1e9}


def image(note: Note) -> dict[str, float]:
    """The files of the image of a node."""
    built = build_image("node", this_wheel())
    note(f"{built} is built")
    container = _buildah("from", built)
    try:
        return {"image_gb": _bytes(Path(_buildah("mount", container))) / 1e9}
    finally:
        _buildah("rm", container)


def _buildah(*words: str) -> str:
    return subprocess.run(["buildah", *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
