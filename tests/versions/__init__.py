"""Versions: stores, files, chains, and what becomes of them when they are damaged."""
