"""A shop: clicks, orders that come hours later, and what is paid."""
