"""Entry of `python -m gpt2train.launch`."""

import sys

from gpt2train.launch.torchrun import main

if __name__ == "__main__":
    sys.exit(main())
