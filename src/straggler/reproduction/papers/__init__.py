"""One directory per reproduced paper."""
