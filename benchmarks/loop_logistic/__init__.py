"""The application of the benchmark of the loop, with the model logistic."""
