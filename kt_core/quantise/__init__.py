"""Other precisions of a checkpoint, made weight by weight in bounded memory: see `job` for what can be asked for."""
