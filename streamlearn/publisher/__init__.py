"""The publisher: versions cut from a trainer while it keeps training, judged, and promoted."""

from streamlearn.publisher.base_process import compact_apart
from streamlearn.publisher.case import Case
from streamlearn.publisher.cut_state import CutState, Resumed
from streamlearn.publisher.judge import DEFAULT_CHECKS, Judge
from streamlearn.publisher.lineage import Lineage
from streamlearn.publisher.publisher import Publisher

__all__ = ["DEFAULT_CHECKS", "Case", "CutState", "Judge", "Lineage", "Publisher", "Resumed", "compact_apart"]
