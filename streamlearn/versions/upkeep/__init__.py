"""Upkeep: what keeps a store small and sound: retention, compaction, verification, reverts, exchange."""

__all__: list[str] = []
