"""Backfill: samples of bounded history."""

__all__: list[str] = []
