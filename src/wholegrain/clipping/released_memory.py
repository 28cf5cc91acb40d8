"""Gives memory back to the system between passes of a trial.

A trial runs passes of many sizes. The blocks of one size leave holes in the heap that those of the next do not fit
into, so that a process would grow by what no tensor holds.
"""

from wholegrain.clipping.heap import LARGE, trim_heap
from wholegrain.clipping.workspace import Workspace


def release_memory(workspace: Workspace) -> None:
    """Forget a workspace's buffers; where they were large, the system has their memory again."""
    if workspace.clear() > LARGE:
        trim_heap()
