"""Do we need asynchronous SGD? K-sync against asynchronous methods."""
