"""The text form of settings, and the objects users bring."""
