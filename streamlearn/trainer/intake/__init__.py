"""Intake: messages of samples in their order, cut into the steps that are learned."""

__all__: list[str] = []
