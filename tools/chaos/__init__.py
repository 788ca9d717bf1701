"""Chaos: the whole loop under load, faults by chance, and what must hold all the same."""
