"""Verbs on events and topics."""

__all__: list[str] = []
