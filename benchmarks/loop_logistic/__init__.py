"""The application that the loop is measured with."""
