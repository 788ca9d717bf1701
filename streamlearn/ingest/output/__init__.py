"""Output: samples, dead letters and progress, written to their topics."""

__all__: list[str] = []
