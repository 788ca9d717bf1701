"""PLE: progressive layered extraction, levels of experts that labels share and of experts of their own."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.models.mmoe import Mmoe

__all__ = ["Ple"]


@dataclass(kw_only=True, eq=False)
class Ple(Mmoe):
    """Progressive layered extraction, for labels that disturb each other in `Mmoe`: it is `Mmoe` with own experts.

    The attributes are those of `Mmoe`.
    """

    experts: int = 2
    own: int = 1
    levels: int = 2
