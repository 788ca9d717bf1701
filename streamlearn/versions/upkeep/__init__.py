"""Upkeep: keeps a store small and sound, by retention, compaction, verification, reverts and exchange."""

__all__: list[str] = []
