"""Other ways to run the same work on this machine, each in an environment of its own."""
