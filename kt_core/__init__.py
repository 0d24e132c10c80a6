"""Everything behind the `kt` command: formats, planning, kernels, engine and server."""
