"""Measuring: what the machine can do at best, what the kernels make of it, and whether their results are right.

`job` and `shapes` are light, for the command line; the rest computes and runs in a process of its own
(`python -m kt_core.bench`). The machine profile is written here and nowhere else.
"""
