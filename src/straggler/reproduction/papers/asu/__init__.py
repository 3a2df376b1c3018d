"""Reproduction of the ASU source."""
