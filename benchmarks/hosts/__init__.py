"""Figures of several machines: nodes restarted one after the other, and shards that become more or fewer."""
