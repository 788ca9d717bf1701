"""Answer: what a request is answered with, before it is put on a wire."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

__all__ = ["Answer", "json_answer", "refusal"]


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        status: Of HTTP.
        body: Its bytes.
        kind: Their media type.
        headers: Others than those that every answer has.
        is_static: Whether it is the same for as long as this console lives.
    """

    status: int
    body: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    is_static: bool = False


def json_answer(status: int, value: object) -> Answer:
    """An answer of JSON."""
    return Answer(status, msgspec.json.encode(value))


def refusal(status: int, error: str, help: str = "", **headers: str) -> Answer:
    """An answer that says what is wrong, and what to do."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    if status == 401:
        named["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": error, "help": help})
    return Answer(status, body, headers=named)
