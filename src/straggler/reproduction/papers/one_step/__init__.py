"""One step of delay: AdamW and Muon."""
