"""Tests of what leads callers to the nodes of applications."""

from __future__ import annotations

__all__ = ["ENVOY_SERIES"]

# Those of Envoy's series that alerts ask for.
ENVOY_SERIES = frozenset({"envoy_cluster_membership_healthy", "envoy_cluster_membership_total"})
