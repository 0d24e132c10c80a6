"""The `kt` command."""
