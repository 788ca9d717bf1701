"""The application that serving is measured with where the model costs next to nothing."""
