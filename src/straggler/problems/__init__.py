"""What is optimized: data, models, losses."""
