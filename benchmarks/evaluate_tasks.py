"""CPU time of `gpt2train evaluate TASK` beside lm-evaluation-harness: one model, the same items, in one process.

    python -m benchmarks.evaluate_tasks MODEL DATA [--items 50] [--tasks hellaswag piqa] [--shots 5] [--repeats 2]

MODEL is a model folder. DATA has TASK.jsonl for each task, in the fields that the harness's own tasks read;
`write_set` of `tests/gpt2train/evaluate/eval_sets.py` makes them of the test data. Loading the model is not counted;
reading, tokenising, scoring and the verdicts are. Needs the extra `peers`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.gpt2train.evaluate.eval_sets import HARNESS, SPLIT

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}

TASKS = [name for name in HARNESS if name not in ("arc_challenge", "copa", "lambada_openai")]


def main() -> None:
    """Print a line per task: seconds of each program, their ratio, and the largest difference of a log-probability."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    args = parser.parse_args()

    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from gpt2train.data.tokenizer import load_tokenizer
    from gpt2train.evaluate.eval_model import read_eval_model
    from gpt2train.evaluate.evaluation import Scorer
    from gpt2train.evaluate.tasks.description import ready_files
    from gpt2train.evaluate.tasks.suite import read_work, score_work

    root = Path(lm_eval.__file__).parent / "tasks"
    theirs = HFLM(pretrained=str(args.model), device="cpu", batch_size=args.batch_size, dtype="float32")
    ours = Scorer(read_eval_model(args.model).model, load_tokenizer(args.model))
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.tasks:
            lines = (args.data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[: args.items]
            data, task = Path(folder) / f"{name}.jsonl", Path(folder) / f"{name}.toml"
            data.write_text("".join(lines), encoding="utf-8")
            shots = f"shots = {args.shots}\n" if args.shots else ""
            task.write_text(shots + ready_files()[name].read_text(encoding="utf-8"), encoding="utf-8")
            yaml = SPLIT.format(file=root / HARNESS[name], name=name, data=data, shots=args.shots)
            (Path(folder) / f"{name}.yaml").write_text(yaml)
            manager = TaskManager(include_path=folder, include_defaults=False)
            times: dict[str, list[float]] = {"own": [], "harness": []}
            for _ in range(args.repeats):
                start = time.process_time()
                work = read_work(str(task), data)
                _, samples = score_work(ours, work)
                times["own"].append(time.process_time() - start)
                start = time.process_time()
                found = lm_eval.simple_evaluate(
                    model=theirs, tasks=[f"{name}_local"], task_manager=manager, bootstrap_iters=0, verbosity="ERROR"
                )
                times["harness"].append(time.process_time() - start)
            expected = sorted(found["samples"][f"{name}_local"], key=lambda sample: sample["doc_id"])
            worst = max(
                abs(own - other)
                for mine, sample in zip(samples[work.name], expected, strict=True)
                for own, [(other, _)] in zip(mine["log_probs"], sample["resps"], strict=True)
            )
            own, harness = min(times["own"]), min(times["harness"])
            ratios.append(harness / own)
            print(json.dumps({"task": name, "items": len(lines), "own_s": round(own, 2), "harness_s": round(harness, 2),
                              "ratio": round(harness / own, 2), "largest_difference": worst}), flush=True)  # fmt: skip
    print(f"ratio: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
