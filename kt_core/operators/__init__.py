"""Modules that rules put in place of a transformers model's own."""
