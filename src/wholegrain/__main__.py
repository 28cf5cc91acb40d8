"""`python -m wholegrain`: the command, for launchers that start modules."""

from wholegrain.cli.app import main

if __name__ == "__main__":  # processes that a command starts read this module, too
    main()
