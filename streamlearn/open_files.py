"""Open files: a process may have as many as its connections need, where the system lets it."""

from __future__ import annotations

import logging
import resource

__all__ = ["allow_connections"]

_LOG = logging.getLogger(__name__)
# What a process has open beside connections: files of versions, libraries, its own connections to others.
_OTHERS = 1_024


def allow_connections(connections_max: int) -> None:
    """Raise the soft limit of open files (`ulimit -n`) to what so many connections need, or as far as the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _OTHERS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        _LOG.warning(
            "the limit of %d open files is too low for %d connections: raise `ulimit -Hn`", hard, connections_max
        )
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
