"""Events, from values to records and back."""
