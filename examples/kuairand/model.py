"""The models: small ones, for a week has few rows. Numbers of keys' own carry most of what they say."""

from __future__ import annotations

from streamlearn.models import DcnV2, DeepFm

__all__ = ["dcn_v2", "deepfm"]


def deepfm() -> DeepFm:
    """The application's model."""
    return DeepFm(hidden=(64, 32), first_order=True)


def dcn_v2() -> DcnV2:
    """Another, to compare with."""
    return DcnV2(cross=2, rank=16, hidden=(64, 32), first_order=True)
