"""HTTP in front of the engine: one file per dialect, all mapped onto one request type."""
