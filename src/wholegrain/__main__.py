"""`python -m wholegrain`: the command, for launchers that start modules."""

from wholegrain.cli.app import main

main()
