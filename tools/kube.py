"""What a real API server of Kubernetes takes of the chart and of `streamlearn manifest`: thirteen sets of values.

`python -m tools.kube` is `make kube`. Pods are made, but never started: there is no kubelet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamlearn.errors import EXIT_FAILED, ServiceError
from streamlearn.testing import wait_until
from tests.manifest.value_sets import NAME, SETS, objects_of, read_set
from tools.helm_chart import CHART
from tools.services import Cache
from tools.services.control_plane import Cluster, cluster
from tools.services.kubernetes import Helm

__all__ = ["NOT_RUN", "kube_figures"]

Note = Callable[[str], None]
NOT_RUN = "helm test: there is no kubelet here, so no pod starts"
_ROOT = Path(__file__).parent.parent
_WAIT_S_MAX, _PODS_WAIT_S_MAX = 120.0, 60.0
# Namespaces refuse pods that may do more than the strictest of the pod security standards lets them.
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_RUNTIME = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


def kube_figures(note: Note) -> dict[str, float]:
    """Install each set with Helm and without, change its shards, take that back, and count the objects refused.

    Raises:
        ServiceError: An API server cannot be built here, or does not start.
    """
    with tempfile.TemporaryDirectory(prefix="streamlearn-kube-") as name, cluster(Path(name)) as there:
        installer = _Installer(there, Helm.fetch(Cache()) / "helm")
        refused = installer.apply([_RUNTIME])
        for file in SETS:
            problems = [*installer.with_helm(file), *installer.without_helm(file)]
            note(f"{file.stem}: {'; '.join(problems) or 'all objects are there, and their pods'}")
            refused += problems
    return {"helm_objects_refused": len(refused), "helm_value_sets": len(SETS)}


class _Installer:
    """Installs into a cluster, and says what it refuses."""

    def __init__(self, there: Cluster, helm: Path) -> None:
        self._there, self._helm = there, helm
        self._environment = {**os.environ, "KUBECONFIG": str(there.configuration)}

    def with_helm(self, file: Path) -> list[str]:
        """Install, change the number of shards and take that back."""
        space, values = f"helm-{file.stem.replace('_', '-')}", read_set(file)
        problems = self._new_space(space)
        chart, shards = str(_ROOT / CHART), values.get("shards", 2)
        problems += self._helmed(space, "install", NAME, chart, "-f", str(file))
        documents = objects_of(values)
        problems += self.apply([one for one in documents if "helm.sh/hook" in str(one["metadata"])], space)
        # Before the first change: of pods that never become ready, a rolling update leaves one too many.
        problems += self._missing_pods(documents, space)
        problems += self._helmed(space, "upgrade", NAME, chart, "-f", str(file), "--set", f"shards={shards + 1}")
        return problems + self._helmed(space, "rollback", NAME, "1")

    def without_helm(self, file: Path) -> list[str]:
        """Apply what the verb prints."""
        space, documents = f"plain-{file.stem.replace('_', '-')}", objects_of(read_set(file))
        return self._new_space(space) + self.apply(documents, space) + self._missing_pods(documents, space)

    def apply(self, documents: list[dict[str, Any]], space: str = "") -> list[str]:
        """Apply objects, and return a line for each that is refused."""
        refusals = [(document, self._there.apply(document, space)) for document in documents]
        return [f"{document['kind']} {document['metadata']['name']}: {why}" for document, why in refusals if why]

    def _new_space(self, space: str) -> list[str]:
        return self.apply(
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": _RESTRICTED}}]
        )

    def _missing_pods(self, documents: list[dict[str, Any]], space: str) -> list[str]:
        """Wait for the pods that controllers make; each that does not come was refused."""
        expected = sum(_pods(documents))
        found = 0

        def all_there() -> bool:
            nonlocal found
            found = len(self._there.names("v1", "pods", space))
            return found == expected

        try:
            wait_until(all_there, f"the pods of {space}", _PODS_WAIT_S_MAX)
        except AssertionError:
            return [f"{space}: {found} of {expected} pods"] * max(1, expected - found)
        return []

    def _helmed(self, space: str, *words: str) -> list[str]:
        """Run Helm, without hooks: it would wait for their end, which needs a kubelet."""
        command = [str(self._helm), *words, "-n", space, "--no-hooks"]
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=_WAIT_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            message = f"helm {words[0]} took longer than {_WAIT_S_MAX:g} s"
            raise ServiceError(message, help="run it again when the machine is less busy") from error
        return [f"helm {words[0]}: {done.stderr.strip()}"] if done.returncode else []


def _pods(documents: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield int(document["spec"].get("replicas", 1))
        elif document["kind"] in ("Job", "Pod"):
            yield 1


def main() -> int:
    """Print a line for each set, what was not run, and the figures as JSON; the status is 1 if anything was refused."""
    try:
        figures = kube_figures(lambda text: print(text, file=sys.stderr, flush=True))
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(f"not run: {NOT_RUN}", file=sys.stderr)
    print(json.dumps(figures))
    return EXIT_FAILED if figures["helm_objects_refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
