"""Flower's SuperNode as a process that ends with the one that started it, however that ended.

It is run by its path, so that it takes no more memory than Flower needs: `python -P supernode.py ARGUMENTS`, with a
pipe as its standard input that the silo holds open and writes nothing to.
"""

import os
import signal
import threading
import time

STANDARD_INPUT = 0
PARTING = 10.0
"""Seconds that Flower has to end by itself."""


def main() -> None:
    """Run `flower-supernode` with the arguments of this process."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    threading.Thread(target=_end_with_the_silo, daemon=True).start()
    flower_supernode()


def _end_with_the_silo() -> None:
    os.read(STANDARD_INPUT, 1)  # by the system's own call: a lock of Python's would stand in the way of its end
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PARTING)
    os._exit(1)


if __name__ == "__main__":
    main()
