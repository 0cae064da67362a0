"""Entry point of `python -m gpt2train`, the same as the command `gpt2train`."""

from gpt2train.cli import main

main()
