"""The passport that the pipeline leaves, held against manifests and formats; and its publication."""

import contextlib
import dataclasses
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from gpt2train.convert.card_scores import Score
from gpt2train.convert.markdown import plain
from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from tasks.outputs.passport.blend import blend_facts
from tasks.outputs.passport.facts import Signal, corpus_facts, training_facts
from tasks.outputs.passport.lineage import send
from tasks.outputs.passport.publish import contents_of
from tasks.outputs.passport.write import corpora_of_run, leave_passport, write_passport
from tests.flows.conftest import Finished
from tests.flows.openlineage_events import remade, without_empty
from tests.hub_server import Hub

EVENTS = "passport/openlineage.jsonl"
LINES = ("croissant.json", "passport/README.md", EVENTS, "passport/eu-summary.md", "passport/spdx.json")


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def change(manifest: Path, **outcome: Any) -> None:
    found = json.loads(manifest.read_text())
    found["outcome"] |= outcome
    manifest.write_text(json.dumps(found))


def test_the_pipeline_leaves_the_documents_and_the_command_the_same(finished: Finished, output: Path) -> None:
    run = finished.run.name
    files = [*LINES, f"runs/{run}/passport/eu-summary.md", f"runs/{run}/passport/spdx.json"]
    assert run_command(app, ["passport", str(output)]) == 0
    for name in files:
        assert (output / name).read_bytes() == (finished.output / name).read_bytes(), name
    card = (finished.run / "model/README.md").read_text()
    for title in ("Sources", "Domains", "Languages", "Filters", "Rights", "Personal data", "Cost", "Evaluation"):
        assert f"## {title}\n" in card


def test_the_cards_have_the_numbers_of_the_manifests(output: Path) -> None:
    """Each changed input changes the cards."""
    card, summary = cards_of(output)
    described = json.loads((output / "croissant.json").read_text())
    assert "isAccessibleForFree" not in described
    assert all(field["description"] != field["name"] for field in described["recordSet"][0]["field"])
    # A step ends before the next one starts.
    found = events_of(output)
    times = {(event["job"]["name"].split("/")[-1], event["eventType"]): event["eventTime"] for event in found}
    assert times["shuffle", "START"] >= times["dedup", "COMPLETE"]
    assert times["dedup", "START"] >= times["decontaminate", "COMPLETE"]
    facts = corpus_facts(Folder(output))
    shuffled = json.loads((output / "shuffled/_manifest.json").read_text())
    assert sum(facts.documents.values()) == shuffled["outcome"]["kept"]
    assert f"| pages fetched by the crawler of this project | {facts.sources[0].seen:,} |" in card
    assert facts.hosts is not None and f"| {facts.hosts[0].name} | {facts.hosts[0].documents:,} |" in card
    assert facts.tokens is not None
    assert f" ({facts.tokens['train']:,} tokens, {facts.documents['train']:,} texts)" in summary
    assert all("No personal data was masked: the masks were off." in text for text in (card, summary))
    record = json.loads((output / "clean/_manifest.json").read_text())
    record["parameters"]["filters"]["pii"] |= {"emails": True, "secrets": True}
    (output / "clean/_manifest.json").write_text(json.dumps(record))
    looked_for = "No personal data was masked: none was found of what was looked for (emails, secrets)."
    assert all(looked_for in text for text in cards_of(output))
    change(output / "clean/_manifest.json", reasons={"wrong_language": 4321}, facts={"masked_emails": 77})
    manifest = json.loads((output / "pages/_manifest.json").read_text())
    manifest["parameters"]["consent"]["honour"] = ["noai"]
    manifest["parameters"]["user_agent"] = "Robot | <b>1</b>"
    (output / "pages/_manifest.json").write_text(json.dumps(manifest))
    consent = output / "pages/consent.parquet"
    table = pq.read_table(consent)
    row = {"kind": "license", "value": "https://licence.example/by", "host": "h", "pages": 654, "dropped": 0}
    pq.write_table(type(table).from_pylist([row], schema=table.schema), consent)
    changed, other = cards_of(output)
    assert "| clean | wrong language | 4,321 |" in changed and "4,321" not in card
    assert "| emails | 77 |" in changed and "| emails |" not in card
    assert "honoured: noai." in changed and "honoured: noai." not in card
    assert "| https://licence.example/by | 654 | 0 | 1 |" in changed and "Licences that pages state: none." in card
    assert "| crawler | Robot \\| \\<b\\>1\\</b\\> |" in changed, "what others chose is no Markdown"
    assert "77 emails" in other and "77 emails" not in summary


def cards_of(output: Path) -> tuple[str, str]:
    write_passport(Folder(output))
    card, summary = ((output / "passport" / name).read_text() for name in ("README.md", "eu-summary.md"))
    return card, summary


def test_a_reject_reason_is_shown_where_it_belongs(output: Path) -> None:
    """Documents drawn for the evaluation are no loss of the corpus; short or repeated pages are not called illegal."""
    for folder, reasons in {
        "evalset": {"common_phrase": 8765},
        "urls": {"duplicate": 5, "too_short": 4, "listed_domain": 31},
        "clean": {"wrong_language": 7},
    }.items():
        change(output / folder / "_manifest.json", reasons=reasons, facts={})
    card, summary = cards_of(output)
    assert "| clean |" in card and "| cloze |" not in card and "8,765" not in card
    section = summary.partition("### 3.2")[2].partition("### 3.3")[0]
    assert "| blacklist | listed domain | 31 |" in section
    assert not any(reason in section for reason in ("duplicate", "short", "language"))


def test_what_the_publisher_states_is_kept_until_it_is_stated_anew(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = tmp_path / "about.toml"
    given = {"provider": "The library of the town", "license": "odc-by", "synthetic_data": "None at all."}
    stated.write_text("small_enterprise = true\n" + "".join(f'{key} = "{value}"\n' for key, value in given.items()))
    summary = output / "passport/eu-summary.md"
    assert run_command(app, ["passport", str(output), "--about", str(stated)]) == 0
    first = summary.read_bytes()
    for said in (b"| name | The library of the town |", b"None at all.", b"The largest 5% of"):
        assert said in first
    assert json.loads((output / "croissant.json").read_text())["license"] == "odc-by"
    leave_passport(Folder(output))  # as the next flow does
    assert summary.read_bytes() == first
    assert contents_of(str(output), dataset=True).about.license == "odc-by"
    stated.write_text('provider = "Another one"\n')
    assert run_command(app, ["passport", str(output), "--about", str(stated)]) == 0
    assert b"Another one" in summary.read_bytes() and b"odc-by" not in (output / "croissant.json").read_bytes()
    stated.write_text("owner = 1\n")
    assert run_command(app, ["passport", str(output), "--about", str(stated)]) == 2
    assert "owner" in capsys.readouterr().err
    (output / "passport/about.json").write_text("{")
    assert run_command(app, ["passport", str(output)]) == 2


def test_an_output_of_an_older_release_is_described_as_far_as_it_is_known(output: Path) -> None:
    """Without times, consent, versions, splits of tokens and a ledger with times."""
    for path in output.glob("*/_manifest.json"):
        manifest = json.loads(path.read_text())
        manifest |= {"versions": {}} | ({"parameters": {}} if manifest["step"] == "download" else {})
        manifest["outcome"]["facts"] = {}
        manifest["outcome"]["audit"] = []
        path.write_text(json.dumps(manifest))
    (output / "timings.jsonl").unlink()
    card, summary = cards_of(output)
    assert "| crawler | unknown |" in card and "| pages fetched | unknown |" in card
    assert "Opt-out signals and licences of the pages were not recorded." in card
    assert "The tokens were not counted." in card and "| size | unknown |" in summary
    assert (output / EVENTS).read_text() == ""
    assert json.loads((output / "passport/spdx.json").read_text())["packages"] == []


def test_a_run_on_two_corpora_is_described_by_both(output: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(output, other, ignore=shutil.ignore_patterns("runs"))
    tokens = other / "tokens/_manifest.json"
    made = json.loads(tokens.read_text())
    made["fingerprint"] = made["fingerprint"][::-1]
    tokens.write_text(json.dumps(made))
    run = next((output / "runs").glob("*/run.json")).parent
    record = json.loads((run / "run.json").read_text())
    (note,) = record["data"]
    second = {"prefix": note["prefix"].replace(str(output), str(other)), "fingerprint": made["fingerprint"]}
    second["identity"] = made["fingerprint"] + ":" + note["identity"].partition(":")[2]
    record["data"] = [note | {"share": 0.7}, note | second | {"share": 0.3}]
    (run / "run.json").write_text(json.dumps(record))
    alone = corpus_facts(Folder(output))
    before = (run / "passport/eu-summary.md").read_text()
    write_passport(Folder(output), [run.name])
    summary = (run / "passport/eu-summary.md").read_text()
    assert "| corpora, by their share of what was read | 70.0%, 30.0% |" in summary and "by their share" not in before
    documents, tokens_of_both = 2 * alone.documents["train"], 2 * (alone.tokens or {})["train"]
    assert f" ({tokens_of_both:,} tokens, {documents:,} texts)" in summary
    noted, unknown = (dataclasses.replace(alone, signals=one) for one in ((Signal("signal", "noai", 3, 2, 1),), None))
    blend = blend_facts([noted, noted])
    assert blend.documents["train"] == documents and blend.signals == (Signal("signal", "noai", 6, 4, 2),)
    assert blend_facts([noted, unknown]).signals is None
    names = {one["name"].split("/")[0] for event in events_of(run) for one in event["outputs"]}
    assert names == {"out", "other"}
    trained = next(e for e in events_of(run) if e["job"]["name"].endswith("train") and e["eventType"] == "COMPLETE")
    assert {"out/tokens", "other/tokens"} <= {one["name"] for one in trained["inputs"]}
    tokens.write_text(json.dumps(made | {"fingerprint": "0" * 64}))  # made again since
    assert corpora_of_run(Folder(output), training_facts(Folder(output), run.name)) == {}


def test_an_output_behind_a_url_has_the_same_documents(finished: Finished) -> None:
    import fsspec

    url = "memory://passport/out"
    store = fsspec.filesystem("memory")
    for path in finished.output.rglob("*"):
        if path.is_file() and not {"runs", "passport", "croissant.json"} & {*path.parts}:
            store.pipe(f"{url}/{path.relative_to(finished.output).as_posix()}", path.read_bytes())
    for path in write_passport(Folder(url)):
        assert Folder(url).read_bytes(path) == (finished.output / path).read_bytes(), path


def test_the_scores_of_a_run_have_intervals(finished: Finished) -> None:
    scores = training_facts(Folder(finished.output), finished.run.name).scores
    accuracy = next(score for score in scores if score.metric == "accuracy")
    assert accuracy.interval and accuracy.interval[0] <= accuracy.value < accuracy.interval[1] and accuracy.examples
    assert Score("d", "accuracy", "a", 0.5, None, 100).text == "0.5 (0.404 to 0.596)", "Wilson's interval"
    assert Score("d", "accuracy", "a", 0.0, 0.0, 100).text == "0 (0 to 0.037)", "of no hit it is not empty"
    assert Score("d", "loss", "a", 3.0, 0.1, 100).text == "3 (2.8 to 3.2)"
    assert Score("d", "f1", "a", 1.0).interval is None
    card = (finished.run / "model/README.md").read_text()
    assert f"| {plain(accuracy.name)} | {accuracy.text} |" in card
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard(card).data
    assert data.model_name and {result.metric_type for result in data.eval_results} >= {"accuracy", "bits_per_byte"}


def test_croissant_reads_the_documents(finished: Finished) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="the package mlcroissant is missing")
    dataset = mlcroissant.Dataset(jsonld=str(finished.output / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    texts = [record["documents/text"].decode() for record in dataset.records("documents")]
    assert sorted(texts) == sorted(pq.read_table(finished.output / "shuffled")["text"].to_pylist())


def test_spdx_tools_find_the_packages_valid(finished: Finished) -> None:
    parser = pytest.importorskip("spdx_tools.spdx.parser.parse_anything", reason="the package spdx-tools is missing")
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    document = parser.parse_file(str(finished.run / "passport/spdx.json"))
    assert validate_full_spdx_document(document) == []
    assert {"torch", "ftfy", "lxml"} <= {package.name for package in document.packages}


def test_the_events_are_those_of_openlineage_and_form_one_chain(finished: Finished) -> None:
    found = events_of(finished.run)
    ended = [event for event in found if event["eventType"] == "COMPLETE"]
    assert len(ended) * 2 == len(found) and [e["run"] for e in found[::2]] == [e["run"] for e in found[1::2]]
    written = set[str]()
    for event in ended:  # each reads what a step before has written
        inner = {one["name"] for one in event["inputs"] if ":" not in one["name"]}
        assert inner <= written, event["job"]["name"]
        written |= {one["name"] for one in event["outputs"]}
    assert any(name.endswith("/model") for name in written)
    trained = next(event for event in ended if event["job"]["name"].endswith("/train"))
    assert {one["name"].split("/")[-1] for one in trained["inputs"]} == {"tokens", "tokenizer"}
    for event in found:
        assert remade(event) == without_empty(event)


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Endpoint that keeps what it is sent; it refuses everything after `limit` requests."""

    bodies: list[dict[str, Any]]
    keys: list[str | None]
    limit = 1000
    target = ""  # to which it redirects

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.target:
            self.send_response(int(self.path.rpartition("/")[2]))
            self.send_header("Location", self.target)
            self.end_headers()
            return
        is_taken = len(self.bodies) < self.limit
        if is_taken:
            self.bodies.append(json.loads(body))
            self.keys.append(self.headers["Authorization"])
        self.send_response(201 if is_taken else 422)
        self.end_headers()

    def do_GET(self) -> None:  # what urllib makes of a redirected POST
        self.keys.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def endpoint() -> Iterator[tuple[str, type[Endpoint]]]:
    kind = type("Own", (Endpoint,), {"bodies": [], "keys": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api/v1/lineage", kind
        server.shutdown()


def test_the_key_follows_no_redirect_and_an_event_is_not_lost() -> None:
    with endpoint() as (address, kind), endpoint() as (elsewhere, other):
        for target in (elsewhere, elsewhere.replace("127.0.0.1", "localhost"), "/moved", "https://127.0.0.1:1/x"):
            kind.target = target
            for status in (301, 302, 303, 307, 308):
                with pytest.raises(RunError, match=rf"redirects to {re.escape(target)}; give that address") as error:
                    send([{"eventType": "COMPLETE"}], f"{address}/{status}", "secret-key")
                assert "secret-key" not in str(error.value)
        assert other.keys == other.bodies == []


def test_events_are_sent_when_asked(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret-key")
    with endpoint() as (address, kind):
        assert run_command(app, ["passport", str(output), "--send", address]) == 0
        sent = [json.dumps(body) for body in kind.bodies]
        assert len(sent) == len(set(sent)) > len(events_of(output)) and set(kind.keys) == {"Bearer secret-key"}
        kind.limit = len(sent) + 1
        assert run_command(app, ["passport", str(output), "--send", address]) == 1
    assert run_command(app, ["passport", str(output), "--send", "file:///etc/passwd"]) == 2
    printed = capsys.readouterr()
    assert "event 2 of" in printed.err and "is no HTTP URL" in printed.err
    assert "secret-key" not in printed.err + printed.out


def test_a_changed_document_or_manifest_breaks_the_signature(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("model_signing", reason="the package model-signing is missing")
    private, public = str(tmp_path / "key.pem"), str(tmp_path / "key.pub")
    for words in (
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private],
        ["ec", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    assert run_command(app, ["passport", str(output), "--sign", private]) == 0
    assert run_command(app, ["passport", str(output), "--check", public]) == 0
    for name, shown in (("passport/README.md", "README.md"), ("clean/_manifest.json", "clean/_manifest.json")):
        kept = (output / name).read_bytes()
        (output / name).write_bytes(kept.replace(b"e", b"E", 1))
        capsys.readouterr()
        assert run_command(app, ["passport", str(output), "--check", public]) == 1
        assert shown in capsys.readouterr().err
        (output / name).write_bytes(kept)
    assert run_command(app, ["passport", str(output), "--check", public]) == 0
    assert run_command(app, ["passport", str(output), "--sign", public]) == 2
    assert "is no private key" in capsys.readouterr().err


def test_a_publication_is_loaded_by_its_readers(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source, target = str(finished.output), tmp_path / "published"
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset", "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert not target.exists() and "model: model.safetensors (" in dry
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset"]) == 0
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    listed = {f"model/{name}" for name in re.findall(r"model: (\S+) \(", dry)}
    assert listed == {name for name in names if name.startswith("model/")}
    assert not [name for name in names if re.search(r"/[._]|_manifest|rejected|checkpoints", name)]
    loaded = datasets.load_dataset(str(target / "dataset"), split="train", cache_dir=str(tmp_path / "cache"))
    shards = sorted((finished.output / "shuffled").glob("*.parquet"))
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist() if row["split"] == "train"]
    assert loaded["text"][:] == [row["text"] for row in rows] and loaded["id"][:] == [row["id"] for row in rows]
    model = transformers.AutoModelForCausalLM.from_pretrained(target / "model")
    own = transformers.AutoModelForCausalLM.from_pretrained(finished.run / "model")
    assert all((p == q).all() for p, q in zip(model.parameters(), own.parameters(), strict=True))
    assert run_command(app, ["publish", source, "--to", str(tmp_path / "again"), "--dataset"]) == 0
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (target / name).read_bytes(), name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "hf://name"], "write it as hf://USER/NAME"),
        (["--to", "hf://user/../name"], "write it as hf://USER/NAME"),
        (["--to", "s3://bucket/x"], "give hf://USER/NAME or a local folder"),
        (["--to", "hf:user/name"], "give hf://USER/NAME or a local folder"),
        (["--to", ""], "give hf://USER/NAME or a local folder"),
        (["--to", "hf://user/name"], "set HF_TOKEN"),
        (["--to", "."], "exists already"),
    ],
)
def test_what_cannot_be_published_is_one_line(
    flags: list[str], message: str, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert run_command(app, ["publish", str(finished.output), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["publish", str(tmp_path), "--to", str(tmp_path / "x")]) == 2
    assert run_command(app, ["publish", str(tmp_path / "none"), "--to", str(tmp_path / "x")]) == 2
    assert run_command(app, ["passport", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "has no model" in err and "is not a folder" in err and "holds neither a corpus nor a run" in err
    run = tmp_path / "runs/tiny-1"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("preset =")
    (run / "metrics.jsonl").touch()
    assert run_command(app, ["passport", str(tmp_path)]) == 2
    assert f"warning: {run}/config.toml is not valid TOML" in capsys.readouterr().err


@pytest.mark.slow
def test_a_publication_is_uploaded_once(finished: Finished, output: Path, tmp_path: Path) -> None:
    """Model, tokenizer, template, cards and documents; what has not changed is neither sent nor committed again."""
    run = output / "runs" / finished.run.name
    (run / "model/chat_template.jinja").write_text("{{ messages[0].content + eos_token }}")
    with Hub() as hub:
        hub.token = "hf_secret"
        own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": hub.token, "HF_HOME": str(tmp_path)}  # it speaks LFS, no Xet
        publishing = [sys.executable, "-m", "gpt2train", "publish", str(output), "--to", "hf://user/name", "--dataset"]

        def publish(status: int = 0) -> "subprocess.CompletedProcess[str]":
            done = subprocess.run(publishing, env=os.environ | own, capture_output=True, text=True, timeout=240)
            assert done.returncode == status, done.stderr
            assert "hf_secret" not in done.stdout + done.stderr and "Traceback" not in done.stderr
            return done

        assert publish().stdout.count("published: ") == 2
        assert hub.private == {"models/user/name": True, "datasets/user/name": True}
        model, documents = (hub.repositories[f"{kind}/user/name"][-1][1] for kind in ("models", "datasets"))
        for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md", "config.json"):
            assert model[name] == (run / "model" / name).read_bytes()
        assert "eu-summary.md" in model
        assert {"README.md", "croissant.json", "data/train-00000.parquet"} <= set(documents)

        commits = {name: len(made) for name, made in hub.repositories.items()}
        hub.calls.clear()
        publish()
        assert {name: len(made) for name, made in hub.repositories.items()} == commits
        assert not [call for call in hub.calls if call.startswith("PUT") or "/commit/" in call or "agent" in call]

        (run / "model/README.md").write_text("---\nlicense: mit\n---\n")
        publish()
        commits["models/user/name"] += 1
        assert {name: len(made) for name, made in hub.repositories.items()} == commits
        assert hub.repositories["models/user/name"][-1][1] == model | {"README.md": b"---\nlicense: mit\n---\n"}
        hub.token = "another"
        assert "was not published (model): " in publish(1).stderr
