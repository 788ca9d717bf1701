"""The models: small ones, because a week has few rows. Biases of keys carry most of the information."""

from __future__ import annotations

from streamlearn.models import DcnV2, DeepFm, Mmoe, Ple

__all__ = ["dcn_v2", "deepfm", "mmoe", "ple"]


def deepfm() -> DeepFm:
    """Return the application's model."""
    return DeepFm(hidden=(64, 32), first_order="labels")


def dcn_v2() -> DcnV2:
    """Return another model for comparison."""
    return DcnV2(cross=2, rank=16, hidden=(64, 32), first_order="labels")


def mmoe() -> Mmoe:
    """Return a model with layers of each label's own."""
    return Mmoe(experts=3, expert=(32, 16), tower=(8,), first_order="labels")


def ple() -> Ple:
    """Return a model with experts of each label's own."""
    return Ple(experts=2, expert=(32,), tower=(8,), first_order="labels")
