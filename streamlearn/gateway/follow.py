"""Follower: keeps Envoy's files like the registry. If it ends, Envoy goes on with what they say."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from streamlearn.errors import RegistryUnreachable
from streamlearn.gateway.envoy import Certificates, configured
from streamlearn.gateway.plan import AccessPlan, Application, Backend, check_nodes, planned
from streamlearn.versions.pointer.registry import Node, Registry

__all__ = ["Follower"]

_LOG = logging.getLogger(__name__)


class Follower:
    """Writes the configuration of some applications into a folder, each file by renaming it into its place.

    Args:
        applications: What is known of them.
        registries: Their registries, in the same order.
        folder: Where the files go.
        tls: Files for TLS.
    """

    def __init__(
        self, applications: Sequence[Application], registries: Sequence[Registry], folder: Path, tls: Certificates
    ) -> None:
        self._applications, self._folder, self._tls = applications, folder.absolute(), tls
        self._registries = dict(zip((one.name for one in applications), registries, strict=True))
        self._nodes = dict[str, list[Node]]()
        self._backends = dict[str, Backend]()
        self._written = dict[str, bytes]()
        self._said = frozenset[str]()

    def step(self) -> AccessPlan:
        """Read the registries, and write what has changed.

        Of an application whose registry does not answer or lists no node, what was last known stays: Envoy asks the
        nodes themselves whether they are ready. The first step writes only if there are nodes: an Envoy may run from
        these files, and has those that were written before.

        Raises:
            UsageError: This is the first step that could write, and a backend has no nodes.
        """
        said = set[str]()
        for name, registry in self._registries.items():
            try:
                self._nodes[name] = registry.nodes()
            except RegistryUnreachable as error:
                said.add(f"the registry of {name!r} does not answer, so its nodes stay as they are: {error.message}")
        plan = planned(self._applications, self._nodes)
        plan = replace(plan, backends=tuple(self._kept(backend, said) for backend in plan.backends))
        plan = replace(plan, notes=(*plan.notes, *sorted(said)))
        if not self._written:
            check_nodes(plan)
        for name, content in configured(plan, self._folder, self._tls).items():
            self._write(name, content)
        self._say({*plan.notes})
        return plan

    def _kept(self, backend: Backend, said: set[str]) -> Backend:
        before = self._backends.get(backend.name)
        if not backend.endpoints and before is not None:
            said.add(f"the registry lists no node of {backend.name!r}; those known before stay")
            return before
        if backend.endpoints:
            self._backends[backend.name] = backend
        return backend

    def _write(self, name: str, content: bytes) -> None:
        if self._written.get(name) == content:
            return
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Envoy watches the folder for files that are moved into it.
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(content)
        os.replace(new, path)  # noqa: PTH105
        self._written[name] = content

    def _say(self, said: set[str]) -> None:
        for text in sorted(said - self._said):
            _LOG.warning("%s", text)
        self._said = frozenset(said)
