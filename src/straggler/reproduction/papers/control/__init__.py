"""Control of staleness when jobs are slow because of their data."""
