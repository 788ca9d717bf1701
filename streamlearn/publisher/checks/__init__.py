"""The checks every version is judged by, one a module."""

from streamlearn.publisher.checks.finite import Finite
from streamlearn.publisher.checks.norms import Norms
from streamlearn.publisher.checks.rows_learned import Learned
from streamlearn.publisher.checks.scores import Scores

__all__ = ["Finite", "Learned", "Norms", "Scores"]
