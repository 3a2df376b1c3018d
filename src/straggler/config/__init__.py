"""The text form of settings, and custom objects that users pass."""
