"""One long run over files of HTML, from web archives to tokens, killed on the way: speed, memory over time, disk.

    python -m benchmarks.archives LIST FOLDER --write              LIST: a text file with the path of a page per line
    python -m benchmarks.archives LIST FOLDER --kill-after 100 200 SIGKILL to all of it, resumed once, and killed again
    python -m benchmarks.archives LIST FOLDER                      resume it to the end, and print the figures of all
    python -m benchmarks.archives LIST FOLDER --archives 10 --runner dask --compare

`--write` draws `--pages` of the files with a seed and writes them as WARC files below FOLDER. Each other call resumes
the same run; samples of its memory are appended to `FOLDER/RUNNER-ARCHIVES.jsonl`. `--compare` prints the hashes
of the token files of all runs below FOLDER over as many archives. Needs the test data: GPT-2's tokenizer and LAMBADA.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.datapath import DATA, write_warc
from benchmarks.pairs import machine

PAGES_PER_FILE = 1000
SAMPLE_SECONDS = 1.0
MIB = 2**20


def write(paths: list[Path], folder: Path) -> None:
    """Write the files as pages of WARC files; the folder below the one of all is the host."""
    base = os.path.commonpath(paths)

    def pages(chosen: list[Path]) -> Iterator[tuple[str, bytes]]:
        for path in chosen:
            place = path.relative_to(base)
            with contextlib.suppress(OSError):  # a link to a package that is not there
                yield f"http://{'-'.join(place.parts[:-1][:2])}.example/{place.as_posix()}", path.read_bytes()

    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(paths), PAGES_PER_FILE)):
        write_warc(folder / f"part-{number:05d}.warc.gz", pages(paths[start : start + PAGES_PER_FILE]))


def leg(output: Path, archives: list[Path], given: argparse.Namespace, log: Path, limit: float) -> int:
    """Run or resume `flows.dataprep`, and kill it after `limit` seconds; return its exit code."""
    command = [sys.executable, "-m", "flows.dataprep", "--output", str(output)]
    command += [word for archive in archives for word in ("--warcs", str(archive))]
    command += ["--workers", str(given.workers), "--runner", given.runner, "--tokenizer.name", "gpt2"]
    command += ["--lambada", str(DATA / "lambada" / "lambada_test.jsonl"), "--tokenizer.folder", str(DATA / "bpe")]
    started, cpu = time.monotonic(), 0.0
    with log.open("a") as lines, subprocess.Popen(command, start_new_session=True) as process:
        while process.poll() is None:
            seconds = time.monotonic() - started
            memory, cpu = tree(process.pid, cpu)
            lines.write(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": memory}) + "\n")
            if seconds > limit:
                kill(process.pid)
                print(f"killed after {seconds:.0f} s", flush=True)
                return 0
            time.sleep(SAMPLE_SECONDS)
        return process.returncode


def tree(pid: int, cpu: float) -> tuple[list[int], float]:
    """Memory of the command and of its children (of each its own pages, and its part of shared ones); CPU seconds."""
    memory, used = [], 0.0
    with contextlib.suppress(psutil.Error):
        command = psutil.Process(pid)
        for process in (command, *command.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory.append(process.memory_full_info().pss)
                used += sum(process.cpu_times()[:4])
    return memory, max(cpu, used)  # the last look may miss a process


def kill(pid: int) -> None:
    """Kill all processes of a run at once."""
    command = psutil.Process(pid)
    for process in (command, *command.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def show(log: Path, output: Path, pages: int) -> None:
    """Print the figures of all legs of a run."""
    samples = [json.loads(line) for line in log.read_text().splitlines()]
    ends = [row for row, after in itertools.pairwise(samples) if after["seconds"] < row["seconds"]] + samples[-1:]
    seconds, cpu = (sum(row[name] for row in ends) for name in ("seconds", "cpu"))
    print(f"{len(ends)} legs: {seconds:,.0f} s, {cpu:,.0f} CPU s")
    print(f"{pages:,} pages: {pages / seconds:.1f} pages/s, {pages / cpu:.1f} pages/CPU s")
    together = [sum(row["bytes"]) / MIB for row in samples]
    size = -(-len(together) // 10)
    tenths = [together[start : start + size] for start in range(0, len(together), size)]
    text = ", ".join(f"{statistics.median(part):,.0f} ({max(part):,.0f})" for part in tenths)
    print(f"MiB by tenths of the run, median (maximum): {text}")
    print(f"largest process: {max(max(row['bytes'], default=0) for row in samples) / MIB:,.0f} MiB")
    print(f"output: {sum(path.stat().st_size for path in output.rglob('*') if path.is_file()) / 1e9:.2f} GB")


def token_hashes(output: Path) -> str:
    """Hash of the token files and their names."""
    found = hashlib.sha256()
    for path in sorted((output / "tokens").rglob("*")):
        if path.is_file() and not path.name.startswith("_"):
            found.update(f"{path.relative_to(output)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def main() -> None:
    """Write the archives, or run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the archives, and nothing else")
    parser.add_argument("--pages", type=int, default=100_000)
    parser.add_argument("--archives", type=int, help=f"only so many archives, of {PAGES_PER_FILE:,} pages each")
    parser.add_argument("--runner", default="local", choices=["local", "dask", "ray"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=float, nargs="*", metavar="SECONDS", help="one leg each")
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    warcs = given.folder / "warcs"
    if given.write:
        paths = sorted(map(Path, given.list.read_text().splitlines()))
        write(random.Random(1).sample(paths, min(given.pages, len(paths))), warcs)
        return
    archives = sorted(warcs.glob("*.warc.gz"))[: given.archives]
    output, log = (given.folder / f"{given.runner}-{len(archives)}{end}" for end in ("", ".jsonl"))
    print(
        f"{len(archives)} archives, {sum(path.stat().st_size for path in archives) / 1e9:.2f} GB; {machine()}",
        flush=True,
    )
    for limit in given.kill_after or [float("inf")]:
        if code := leg(output, archives, given, log, limit):
            sys.exit(code)
    if (output / "tokens" / "_manifest.json").exists():
        show(log, output, PAGES_PER_FILE * len(archives))
    if given.compare:
        for other in sorted(given.folder.glob(f"*-{len(archives)}")):
            print(f"{token_hashes(other)}  {other.name}")


if __name__ == "__main__":
    main()
