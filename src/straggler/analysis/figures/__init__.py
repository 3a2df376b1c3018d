"""Figures of runs: each is described once, and rendered by matplotlib for paper or by plotly for pages."""
