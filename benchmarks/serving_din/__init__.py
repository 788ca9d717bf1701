"""The application that serving is measured with: attention over a history of 50 places."""
