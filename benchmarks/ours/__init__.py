"""The parts of benchmarks that run this project in processes of their own, as peers do."""
