"""Chaos test: random faults on the running loop, and checks of what must hold in spite of them."""
