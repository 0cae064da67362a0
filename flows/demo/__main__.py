"""The demo site as a process of its own: `python -m flows.demo --parent PID`.

Prints one line of JSON with its port, then serves until its parent ends or it is killed.
"""

import argparse
import contextlib
import json
import os
import sys
import warnings

from flows.demo.server import Server
from gpt2train.lifeline import die_with_parent


def main() -> None:
    """Serve the site."""
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description="Serve the demo site on 127.0.0.1.")
    parser.add_argument("--parent", type=int, help="end when this process, which must have started this one, ends")
    given = parser.parse_args()
    if given.parent is not None:
        die_with_parent(given.parent)
    warnings.simplefilter("ignore")  # modules that are out of fashion say so on import
    with Server() as server, contextlib.suppress(KeyboardInterrupt):
        print(json.dumps({"port": server.server_port}), flush=True)
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - what modules print on import is of no interest
            sys.stdout = nowhere
            server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
