"""The choice of logged requests if not all are logged; serving and the join choose the same ones."""

from __future__ import annotations

from streamlearn.native import native

__all__ = ["is_logged"]


def is_logged(request_id: str, share: float) -> bool:
    """Return whether a request belongs to the `share` (`join.logged_share`) of requests that serving logs.

    Examples:
        >>> from streamlearn.events import is_logged
        >>> sum(is_logged(f"request-{number}", 0.25) for number in range(10_000))
        2641
    """
    return bool(native.is_request_logged(request_id.encode(), share))
