"""Server process of the demo site: `python -m flows.demo --parent PID`.

It prints one line of JSON with its port, then serves until its parent ends or it is killed.
"""

import argparse
import contextlib
import json
import os
import sys
import warnings

from flows.demo.server import Server
from gpt2train.launch.parent_death import die_with_parent


def main() -> None:
    """Serve the site."""
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description="Serve the demo site on 127.0.0.1.")
    parser.add_argument("--parent", type=int, help="end when this process, which must have started this one, ends")
    given = parser.parse_args()
    if given.parent is not None:
        die_with_parent(given.parent)
    warnings.simplefilter("ignore")  # deprecated modules warn on import
    with Server() as server, contextlib.suppress(KeyboardInterrupt):
        print(json.dumps({"port": server.server_port}), flush=True)
        with open(os.devnull, "w") as devnull:  # noqa: PTH123 - discards the output of modules on import
            sys.stdout = devnull
            server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
