"""Answer: the answer to a request, before it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

__all__ = ["Answer", "json_answer", "refusal"]


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status, its body of media type `kind`, and headers beside those that every answer has.

    If `is_static`, the body stays the same as long as this console runs.
    """

    status: int
    body: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    is_static: bool = False


def json_answer(status: int, value: object) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status, msgspec.json.encode(value))


def refusal(status: int, error: str, help: str = "", **headers: str) -> Answer:
    """Return an answer that says what is wrong and what to do."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    if status == 401:
        named["WWW-Authenticate"] = "Bearer"
    return Answer(status, msgspec.json.encode({"error": error, "help": help}), headers=named)
