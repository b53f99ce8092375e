"""`python -m shardmill` is the command `shardmill`."""

from shardmill.cli import main

main()
