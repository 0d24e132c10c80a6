"""A conversation on the terminal: the loop, what is typed, the commands that begin with a slash, and what is kept."""
