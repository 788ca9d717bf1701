"""The publisher: versions cut from a trainer while it goes on, judged, and promoted."""

from streamlearn.publisher.bases import Bases
from streamlearn.publisher.basing import compact_apart
from streamlearn.publisher.case import Case, Check, Samples
from streamlearn.publisher.checks import Finite, Learned, Norms, Scores
from streamlearn.publisher.judge import DEFAULT_CHECKS, Judge
from streamlearn.publisher.lineage import Lineage
from streamlearn.publisher.noted import Noted, Resumed
from streamlearn.publisher.publisher import Publisher

__all__ = [
    "DEFAULT_CHECKS",
    "Bases",
    "Case",
    "Check",
    "Finite",
    "Judge",
    "Learned",
    "Lineage",
    "Norms",
    "Noted",
    "Publisher",
    "Resumed",
    "Samples",
    "Scores",
    "compact_apart",
]
