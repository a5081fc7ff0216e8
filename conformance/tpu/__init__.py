"""The programs of green pairs and of the examples, compiled ahead of time for a TPU that is not here."""
