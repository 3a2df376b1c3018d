"""Download, verify and cache published data sets."""
