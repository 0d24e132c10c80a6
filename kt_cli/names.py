"""What a person reads for the names that data uses."""

from kt_core.messages import room, t


def of(kind: str, name: str) -> str:
    """The name of a "decision", a "check", a "part" of a model or a kind of "cache"; one that has none, such as a
    package's, is shown as it is."""
    key = f"names.{kind}_{name}"
    return t(key) if key in room("names") else name
