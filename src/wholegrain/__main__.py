"""`wholegrain` and `python -m wholegrain`: the command, with nothing imported before Ctrl-C can be answered."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it without a traceback."""
    try:
        from wholegrain.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":  # processes that a command starts read this module, too
    main()
