"""Ours: what stands against the peers."""
