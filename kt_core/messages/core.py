"""Messages shared by all rooms."""

MESSAGES: dict[str, tuple[str, str]] = {
    "core.remote": ("{what}\n{why}\n{next}", "{what}\n{why}\n{next}"),
}
