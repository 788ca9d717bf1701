"""Intake: reads messages of samples in order and cuts them into steps."""

__all__: list[str] = []
