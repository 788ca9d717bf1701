"""Models: what they compute, what is refused, and the graphs they are exported as."""
