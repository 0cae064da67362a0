"""Start a command in the image of gpt2train, with a checkout's source mounted and this machine's GPUs passed.

    python deployments/container.py --src . -- python -m flows.pipeline

Needs nothing but Python: no package is imported. The working folder of the command is `/data`, the folder of `--data`
on this machine; the mounted source comes before the package of the image.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

ENGINES = ("podman", "docker")
SOURCE, DATA = "/src", "/data"
STOP_SECONDS = 90  # a training saves a checkpoint within launch.shutdown_timeout (60 s) of SIGTERM


def main(argv: list[str]) -> int:
    """Parse the command line, and replace this process by the container engine's; `--dry-run` prints its line."""
    options, command = parse(argv)
    line = engine_line(options, command)
    if options.dry_run:
        print(shlex.join(line))
        return 0
    sys.stdout.flush()
    os.execvp(line[0], line)


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line at `--` into the options and the command of the container."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = _Parser(prog="container.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", metavar="DIR", help="root of a checkout, mounted in place of the image's package")
    parser.add_argument("--data", metavar="DIR", default=".", help="working folder of the command (default: this one)")
    parser.add_argument("--image", default="gpt2train", help="name of the image (default: gpt2train)")
    parser.add_argument(
        "--engine", choices=ENGINES, help="container engine (default: podman if it is there, or docker)"
    )
    parser.add_argument("--gpus", default="auto", help="all, none, their numbers as 0,1, or auto: all if there are any")
    parser.add_argument("--shm-size", default="8g", help="shared memory of NCCL and data loading (default: 8g)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="environment variable")
    parser.add_argument("--volume", action="append", default=[], metavar="DIR:PATH", help="another folder to mount")
    parser.add_argument("--dry-run", action="store_true", help="print the engine's command line; start nothing")
    options = parser.parse_args(argv[:at])
    if not (command := argv[at + 1 :]):
        parser.error("no command; give it after --, as: container.py --src . -- python -m flows.pipeline")
    if not re.fullmatch(r"auto|all|none|[\w-]+(,[\w-]+)*", options.gpus):
        parser.error(f"--gpus {options.gpus!r} is none of all, none, auto and numbers such as 0,1")
    if options.src is not None and not (Path(options.src) / "gpt2train/__init__.py").is_file():
        parser.error(f"--src {options.src} holds no gpt2train/; give the root of a checkout")
    for name in ("src", "data"):
        folder = getattr(options, name)
        if folder is not None and not Path(folder).is_dir():
            parser.error(f"--{name} {folder} is not a folder")
        if folder is not None and ":" in str(Path(folder).absolute()):
            parser.error(f"--{name} {folder}: a mounted path must not contain ':'; rename the folder")
    if options.engine is None:
        found = [name for name in ENGINES if shutil.which(name)]
        if not found and not options.dry_run:
            parser.error("neither podman nor docker is on the PATH; install one of them")
        options.engine = (found or ENGINES[:1])[0]
    return options, command


def engine_line(options: argparse.Namespace, command: list[str]) -> list[str]:
    """Return the command line of the container engine."""
    line = [options.engine, "run", "--rm", "--init", "--stop-timeout", str(STOP_SECONDS)]
    if sys.stdin.isatty() and not options.dry_run:
        line += ["--interactive", "--tty"]
    line += ["--shm-size", options.shm_size, *_gpu_flags(options.engine, options.gpus)]
    # Files that the command writes belong to this user, not to the one of the image.
    line += ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
    if options.engine == "podman":
        line += ["--userns", "keep-id", "--security-opt", "label=disable"]  # SELinux would hide the mounted folders
    line += ["--volume", f"{Path(options.data).absolute()}:{DATA}", "--workdir", DATA]
    if options.src is not None:
        # Read-only, so that no run changes the checkout; bytecode goes elsewhere.
        line += ["--volume", f"{Path(options.src).absolute()}:{SOURCE}:ro"]
        line += ["--env", f"PYTHONPATH={SOURCE}", "--env", "PYTHONPYCACHEPREFIX=/tmp/pycache"]
    for volume in options.volume:
        line += ["--volume", volume]
    for variable in options.env:
        line += ["--env", variable]
    return [*line, options.image, *command]


def _gpu_flags(engine: str, gpus: str) -> list[str]:
    """Flags that pass GPUs: NVIDIA's runtime for docker, CDI devices (`nvidia-ctk cdi generate`) for podman."""
    if gpus == "auto":
        gpus = "all" if shutil.which("nvidia-smi") else "none"
    if gpus == "none":
        return []
    if engine == "podman":
        return [word for name in gpus.split(",") for word in ("--device", f"nvidia.com/gpu={name}")]
    return ["--gpus", "all" if gpus == "all" else f'"device={gpus}"']  # docker splits an unquoted value at commas


class _Parser(argparse.ArgumentParser):
    """Parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
