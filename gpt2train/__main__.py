"""`python -m gpt2train` is the command `gpt2train`."""

from gpt2train.cli import main

main()
