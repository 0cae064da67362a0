"""Real clients, unchanged: OpenAI's package, lm-evaluation-harness, curl; and the command in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpt2train.convert.huggingface import write_model
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.serve.local_server import SHAPE, Gate, Running, running, small_model, write_tokenizer
from tests.processes import wait_for

SECONDS = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    write_model(folder / "small", dict(small_model().state_dict()), SHAPE, tokenizer)
    return folder / "small"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


def test_the_openai_package_works(server: Running) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is the peer; extra peers")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    assert [one.id for one in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    asked: dict[str, Any] = {"model": "small", "prompt": "Once upon", "max_tokens": 20, "seed": 5, "logprobs": 2}
    whole = client.completions.create(**asked)
    choice = whole.choices[0]
    assert (choice.finish_reason, whole.usage.completion_tokens) == ("length", 20)
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == 20
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == choice.text
    assert chunks[-1].usage == whole.usage
    two = client.completions.create(model="small", prompt=["a", "b"], n=2, max_tokens=3)
    assert [one.index for one in two.choices] == [0, 1, 2, 3]
    with pytest.raises(openai.BadRequestError, match="max_tokens") as refused:
        client.completions.create(model="small", prompt="a", max_tokens=1000)
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-3", prompt="a")


def test_the_openai_package_raises_an_error_inside_a_stream() -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is the peer; extra peers")
    gate = Gate(LocalDecoder(small_model(), 1))
    gate.failure = RuntimeError("gone")
    with running(gate, ServeSettings(max_batch_size=1)) as one:
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="any", max_retries=0)
        stream = client.completions.create(model="small", prompt="a", stream=True)
        gate.allow(1)
        with pytest.raises(openai.APIError, match="failed"):
            list(stream)


@pytest.mark.slow  # 12 s of processor time, most of it to load the harness
def test_lm_eval_scores_the_server_like_the_model_folder(server: Running, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is the peer; extra peers")
    import yaml
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    words = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8").split()
    rows = [{"before": " ".join(words[i : i + 8]), "last": words[i + 8]} for i in range(0, 180, 9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{before}}",
        "doc_to_target": "{{' ' + last}}",
    }
    likely = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    tasks = {
        "lasts": {"output_type": "loglikelihood", "metric_list": [likely, {"metric": "acc", "aggregation": "mean"}]},
        "goes_on": {
            "output_type": "generate_until",
            "generation_kwargs": {"until": ["\n", " the"], "max_gen_toks": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
        },
    }
    for name, task in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **common, **task}))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    arguments = {
        "hf": f"pretrained={model},device=cpu,dtype=float32,max_length=128",
        "local-completions": f"model=small,base_url={server.url}/v1/completions,tokenizer={model},"
        "tokenizer_backend=huggingface,tokenized_requests=True,max_length=128,num_concurrent=4,max_retries=1",
    }
    results = {
        name: simple_evaluate(
            model=name, model_args=given, tasks=list(tasks), task_manager=manager, batch_size=1, log_samples=True
        )
        for name, given in arguments.items()
    }
    ours, theirs = results["local-completions"], results["hf"]
    scores, expected = (one["results"]["lasts"] for one in (ours, theirs))
    assert scores["acc,none"] == expected["acc,none"]
    assert scores["perplexity,none"] == pytest.approx(expected["perplexity,none"], rel=1e-4)
    for a, b in zip(
        *(sorted(one["samples"]["lasts"], key=lambda s: s["doc_id"]) for one in (ours, theirs)), strict=True
    ):
        assert a["filtered_resps"][0][0] == pytest.approx(b["filtered_resps"][0][0], abs=1e-3)
        assert a["filtered_resps"][0][1] == b["filtered_resps"][0][1]
    texts = [
        [s["filtered_resps"][0] for s in sorted(one["samples"]["goes_on"], key=lambda s: s["doc_id"])]
        for one in (ours, theirs)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 3


def test_the_command_answers_curl_and_stops_on_sigterm(model: Path, tmp_path: Path) -> None:
    """One process for it all: a start costs seconds."""
    key = tmp_path / "key"
    key.write_text("secret-of-the-test\n")
    command = [sys.executable, "-m", "gpt2train", "serve", "--model", str(model), "--port", "0", "--key-file", str(key)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    try:
        wait_for(lambda: "serving" in (tmp_path / "log").read_text() or process.poll() is not None, SECONDS, "a start")
        started = (tmp_path / "log").read_text()
        assert started.startswith("serving small at http://127.0.0.1:")
        address = started.split()[3].rstrip(",")
        headers = {"Authorization": "Bearer secret-of-the-test"}
        if shutil.which("curl"):  # the request of Megatron-LM's own text, and the key
            asked = '{"prompts":["Hello world"], "tokens_to_generate":1}'
            kind = "Content-Type: application/json; charset=UTF-8"
            curl = ["curl", "-s", f"{address}/api", "-X", "PUT", "-H", kind, "-d", asked]
            answer = json.loads(subprocess.check_output([*curl, "-H", f"Authorization: {headers['Authorization']}"]))
            assert answer["text"][0].startswith("Hello world")
            assert len(answer["segments"][0]) == 12
            assert "message" in json.loads(subprocess.check_output(curl))
        client = httpx.Client(base_url=address, timeout=SECONDS, headers=headers, trust_env=False)
        with client, ThreadPoolExecutor(4) as pool:
            body = {"prompt": ["a"] * 8, "max_tokens": 120, "temperature": 0}
            running = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(4)]
            wait_for(lambda: client.get("/health").json()["rows"], SECONDS, "a request that runs")
            process.send_signal(signal.SIGTERM)
            answers = [one.result() for one in running]
        assert {answer.status_code for answer in answers} == {200}
        assert {choice["finish_reason"] for answer in answers for choice in answer.json()["choices"]} <= {
            "length",
            "stop",
        }
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    log_text = (tmp_path / "log").read_text()
    assert "secret-of-the-test" not in log_text
    assert "Traceback" not in log_text


def test_wrong_options_of_the_command_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpt2train.cli import app
    from gpt2train.command_line import run_command

    (tmp_path / "empty").write_text("\n")
    for flags, said in (
        (["--model", str(tmp_path / "nothing")], "nothing"),
        (["--model", str(model), "--host", "203.0.113.7"], "--port"),
        (["--model", str(model), "--key-file", str(tmp_path / "empty")], "--key-file"),
        (["--model", str(model), "--max-batch-size", "0"], "--max-batch-size"),
    ):
        assert run_command(app, ["serve", *flags]) == 2
        assert said in capsys.readouterr().err
