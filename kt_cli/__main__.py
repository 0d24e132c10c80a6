"""`python -m kt_cli` is `kt`."""

from kt_cli.main import main

main()
