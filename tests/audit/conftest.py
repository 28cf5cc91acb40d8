"""The command, as the tests of the command line call it."""

from cli.conftest import wholegrain as wholegrain
