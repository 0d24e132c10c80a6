"""One file per command; each has `app`, a Typer application whose help strings are message keys."""
