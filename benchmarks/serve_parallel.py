"""A served model over several processes: peak memory of each, CPU time at rest, time from a death to the end.

    python -m benchmarks.serve_parallel --tokenizer DIR [--layouts 1x1 2x1 2x2] [--layers 12 --hidden 768]

Weights are random; the tokenizer gives the vocabulary. Measured per layout (tp x pp): the greatest peak memory of a
process (VmHWM, torch itself included), the CPU time of all over ten seconds without a request, milliseconds for each
token of a single request, and the seconds from `kill -9` of the last rank until the job has ended.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

REST = 10.0  # seconds
NEW = 32  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder")
    parser.add_argument("--layouts", nargs="+", default=["1x1", "2x1", "1x2", "2x2"], help="tp x pp")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write(model, options.tokenizer, options.layers, options.hidden)
        print("tp x pp   peak MB a process   CPU s in 10 s of rest   ms a token   s from death to end")
        for layout in options.layouts:
            print(measure(model, *map(int, layout.split("x"))), flush=True)


def write(folder: Path, tokenizer: Path, layers: int, hidden: int) -> None:
    """A model folder with its first values, written by a process of its own: nothing of it stays in this one."""
    script = (
        "import sys; from pathlib import Path; from gpt2train.convert.huggingface import save_model\n"
        "from gpt2train.data.tokenizer import load_tokenizer; from gpt2train.model.gpt2 import GPT2\n"
        "from gpt2train.model.lazy_weights import LazyWeights, in_memory\n"
        "from gpt2train.model.init import initialise; from gpt2train.model.shape import Shape\n"
        "place, tables, layers, hidden = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\n"
        "shape = Shape(load_tokenizer(tables).get_vocab_size(), layers, hidden // 64, hidden, 1024)\n"
        "weights = in_memory(dict(initialise(GPT2(shape), 1).state_dict()))\n"
        "save_model(place, LazyWeights(shape, weights), tables)\n"
    )
    subprocess.run([sys.executable, "-c", script, folder, tokenizer, str(layers), str(hidden)], check=True)


def measure(model: Path, tp: int, pp: int) -> str:
    """A line of the table."""
    command = [
        sys.executable,
        "-m",
        "gpt2train",
        "serve",
        "--model",
        str(model),
        "--port",
        "0",
        "--max-batch-size",
        "4",
    ]
    command += ["--tp", str(tp), "--pp", str(pp)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    assert job.stdout is not None
    found = re.search(r"http://\S+:\d+", job.stdout.readline())
    if not found:
        sys.exit(job.communicate()[1])
    parent = psutil.Process(job.pid)
    ranks = [one for one in parent.children(recursive=True) if "RANK" in one.environ()] or [parent]
    ask(found[0], 2)
    peak = max(peak_of(rank.pid) for rank in ranks)
    start = time.perf_counter()
    ask(found[0], NEW)
    each = (time.perf_counter() - start) / NEW
    before = cpu(ranks)
    time.sleep(REST)
    rest = cpu(ranks) - before
    ranks[-1].kill()
    start = time.perf_counter()
    job.communicate()
    psutil.wait_procs(ranks)
    return f"{tp} x {pp} {peak:20,.0f} {rest:22.2f} {1000 * each:14.1f} {time.perf_counter() - start:19.1f}"


def ask(address: str, tokens: int) -> None:
    body = json.dumps({"prompt": "The", "max_tokens": tokens, "temperature": 0}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()


def peak_of(process: int) -> float:
    """Megabytes that a process had at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
