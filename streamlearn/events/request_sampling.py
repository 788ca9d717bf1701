"""Which requests are logged where not all are: whoever serves and whoever joins choose the same ones."""

from __future__ import annotations

from streamlearn.native import native

__all__ = ["is_logged"]


def is_logged(request_id: str, share: float) -> bool:
    """Whether a request is among the share of requests that serving logs.

    Args:
        request_id: The request.
        share: The share, as `join.logged_share`; 1 logs all.

    Examples:
        >>> from streamlearn.events import is_logged
        >>> sum(is_logged(f"request-{number}", 0.25) for number in range(10_000))
        2641
    """
    return bool(native.is_request_logged(request_id.encode(), share))
