"""User errors: one line that names the fault and the remedy, exit code 2, nothing started."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.dataprep import dataprep
from flows.orchestration.server import KEY_FILE, check_home
from flows.settings import DataprepSettings, resolve
from gpt2train.errors import UserError
from tests.flows.commands import run
from tests.flows.conftest import Finished, Server
from tests.processes import wait_until_ended


def check_line(error: str, *said: str) -> None:
    assert error.startswith("error: ") and error.count("\n") == 1, error
    for part in said:
        assert part in error


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_missing_list_is_refused(tmp_path: Path, more: list[str]) -> None:
    """Exit code and output as the shell gets them; the server, if one was started, ends with the command."""
    command = [sys.executable, "-m", "flows.pipeline", "--urls", str(tmp_path / "none.txt"), *more]
    command += ["--output", str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(tmp_path / "home")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        printed, error = run.communicate(timeout=240)
    assert run.returncode == 2 and printed == ""
    check_line(error, "none.txt", "No such file", "check the path")
    assert (tmp_path / "home" / KEY_FILE).exists() is not bool(more)
    servers = [one for one in psutil.process_iter(["cmdline"]) if str(run.pid) in (one.info["cmdline"] or [])]
    wait_until_ended(servers)


@pytest.mark.parametrize(
    ("flow", "flags", "said"),
    [
        ("pipeline", ["--dedup.treshold", "0.7"], ["--dedup.treshold", "--dedup.threshold"]),
        ("pipeline", ["--config", "{}/unknown.toml"], ["unknown.toml", "dedup.treshold", "'dedup.threshold'"]),
        ("pipeline", ["--dedup.threshold", "7"], ["--dedup.threshold", "less than or equal to 1"]),
        ("dataprep", ["--config", "{}/open.toml"], ["open.toml", "line 1"]),
        ("finetune", ["--task", "{}/file"], ["error: --model: field required\n"]),
        ("pipeline", ["--preset", "354m", "--output", "{}/out"], ["'354m'", "'345m'"]),
        ("pipeline", ["--launch.processes", "3", "--output", "{}/out"], ["global_batch 8", "x 3 "]),
        ("pipeline", ["--output", "{}/file/out"], ["file/out", "--output"]),
        ("pipeline", ["--lambada", "{}/lambada.jsonl", "--output", "{}/out"], ["lambada.jsonl line 2"]),
        ("pipeline", ["--wikitext", "{}/none.tokens", "--output", "{}/out"], ["none.tokens", "check the path"]),
        ("pipeline", ["--evals.other", "{}/file", "--output", "{}/out"], ["no evaluation 'other'"]),
        ("pipeline", ["--evals.wikitext", "{}/file", "--output", "{}/out"], ["wikitext has a setting of its own"]),
        ("pipeline", ["--urls", "{}/urls.txt", "--output", "{}/out"], ["urls.txt", "holds no URL", "one per line"]),
        ("pipeline", ["--urls", "{}/a.warc.gz", "--output", "{}/out"], ["a.warc.gz", "web archive", "--warcs"]),
        ("dataprep", ["--output", "{}/out", "--cluster", "tcp://127.0.0.1:1"], ["tcp://127.0.0.1:1 needs --runner"]),
        ("dataprep", ["--output", "memory://out"], ["memory://out is seen by one process", "give a folder"]),
        ("pipeline", ["--output", "memory://out"], ["a local disk, not to memory://out; run flows.dataprep"]),
        ("pretrain", ["--output", "memory://out"], ["a local disk, not to memory://out; run flows.dataprep"]),
        ("pretrain", ["--output", "{}/file/out", "--launch.skip-resource-check"], ["file/out", "--output"]),
        ("evaluate", ["--run", "{}/none", "--config", "{}/open.toml"], ["open.toml", "line 1"]),
    ],
)
def test_a_wrong_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flow: str, flags: list[str], said: list[str]
) -> None:
    (tmp_path / "unknown.toml").write_text("[dedup]\ntreshold = 0.7\n")
    (tmp_path / "open.toml").write_text("[dedup\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(b"WARC/1.0\r\nWARC-Type: response\r\n\r\n"))
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b"}\n{"words": 1}\n')
    (tmp_path / "urls.txt").write_text("\n# nothing yet\n")
    for more in ([], ["--dry-run"]):  # a dry run reports what the run would report
        assert run(flow, *(flag.replace("{}", str(tmp_path)) for flag in flags), *more) == 2
        captured = capsys.readouterr()
        check_line(captured.err, *said)
        assert captured.out == ""


@pytest.mark.parametrize(
    ("flow", "flags", "said", "planned"),
    [
        ("pretrain", ["--output", "{}/out"], "/tokens holds no finished step", "missing     tokens (none in"),
        ("pretrain", ["--data", "{}/none", "--output", "{}"], "/tokens holds no finished step", "tokens (none in"),
        ("evaluate", ["--run", "{}/runs/none"], "runs/none holds no finished step", ""),
    ],
)
def test_a_missing_step_is_named_and_a_dry_run_shows_it_in_its_plan(
    flow: str, flags: list[str], said: str, planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [flag.replace("{}", str(tmp_path)) for flag in flags]
    assert run(flow, *given) == 1
    error = capsys.readouterr().err
    check_line(error, said)
    assert run(flow, *given, "--dry-run") == 1
    captured = capsys.readouterr()
    assert captured.err == error and planned in captured.out and bool(planned) == bool(captured.out)


def test_a_second_run_on_one_output_is_refused(finished: Finished, server: Server, tmp_path: Path) -> None:
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"):
        done = finished.mini.run("dataprep", "--output", str(tmp_path), **server.environment)
    assert done.returncode == 2
    assert "another run" in done.stderr and "is at work" in done.stderr


# What the checks before the start find, in this process: a command would take seconds for each. `{}` is the folder.


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "urls.txt").write_text("http://a.example/page\n")
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"http://a.example/page\n" * 1000)[:-9])
    (folder / "plain.txt.gz").write_text("http://a.example/page\n")
    (folder / "no.parquet").write_text("no Parquet file")
    pq.write_table(pa.table({"address": ["http://a.example/"]}), folder / "other.parquet")
    pq.write_table(pa.table({"url": [1]}), folder / "numbers.parquet")
    (folder / "empty").mkdir()
    (folder / "none.jsonl").write_text("")
    (folder / "words.jsonl").write_text('{"words": 1}\n')
    (folder / "broken.jsonl").write_text('{"text": "a b"}\n{broken\n')
    (folder / "number.jsonl").write_text('{"text": "a b"}\n\n{"text": 5}\n')
    (folder / "binary.jsonl").write_bytes(random.Random(0).randbytes(300))
    (folder / "latin.jsonl").write_bytes('{"text": "un café noir"}\n'.encode("latin-1"))
    (folder / "type.toml").write_text("workers = 'two'\n")
    (folder / "binary.toml").write_bytes(b"\xff\xfe\0")
    return folder


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"urls": ["{}/cut.txt.gz"]}, ["cut.txt.gz", "not a complete .gz file", "fetch it again"]),
        ({"urls": ["{}/plain.txt.gz"]}, ["plain.txt.gz", "not a complete .gz file", "rename it"]),
        ({"urls": ["{}/no.parquet"]}, ["no.parquet", "not a readable Parquet file"]),
        ({"urls": ["{}/other.parquet"]}, ["other.parquet", "no column 'url'", "address"]),
        ({"urls": ["{}/numbers.parquet"]}, ["numbers.parquet", "int64"]),
        ({"urls": ["{}/empty"]}, ["empty", ".txt", "--urls"]),
        ({"urls": ["{}/*.lst"]}, ["*.lst", "--urls"]),
        ({"urls": ["nope://a/urls.txt"]}, ["nope"]),
        ({"urls": ["http://127.0.0.1:1/urls.txt"]}, ["127.0.0.1:1", "cannot read"]),
        ({"lambada": "{}/none"}, ["none", "check the path"]),
        ({"lambada": "{}/empty"}, ["empty", "directory"]),
        ({"lambada": "{}/none.jsonl"}, ["none.jsonl", "contains no passage", '{"text"']),
        ({"lambada": "{}/broken.jsonl"}, ["broken.jsonl line 2", '{"text"', "correct or remove"]),
        ({"lambada": "{}/number.jsonl"}, ["number.jsonl line 3", "not a string", "correct or remove"]),
        ({"lambada": "{}/binary.jsonl"}, ["binary.jsonl line 1", "correct or remove"]),
        ({"lambada": "{}/latin.jsonl"}, ["latin.jsonl line 1", "correct or remove"]),
        ({"decontaminate": {"against": ["{}/gone.jsonl"]}}, ["gone.jsonl", "No such file"]),
        ({"decontaminate": {"against": ["{}/words.jsonl"]}}, ["words.jsonl", "row 1 (KeyError)"]),
        ({"config": "{}/type.toml"}, ["workers", "two"]),
        ({"config": "{}/binary.toml"}, ["binary.toml", "it is UTF-16"]),
        ({"config": "{}/empty"}, ["empty", "directory"]),
        ({"config": "{}/none.toml"}, ["none.toml", "check the path"]),
        ({"config": ""}, ["'' is neither a settings file"]),
        ({"output": ""}, ["output", "at least 1 character"]),
        ({"documents": [""]}, ["documents", "at least 1 character"]),
        ({"lambada": ""}, ["lambada", "at least 1 character"]),
        ({"output": "{}/urls.txt"}, ["urls.txt", "give another --output"]),
        ({"output": "{}/a\0b"}, ["embedded null", "give another --output"]),
        ({"output": "{}/" + "n" * 300}, ["too long", "give another --output"]),
        ({"output": "/proc/nowhere"}, ["/proc/nowhere", "give another --output"]),
        ({"output": "nope://bucket/out"}, ["nope"]),
        ({"runner": "rya"}, ["runner", "'ray'", "rya"]),
        ({"workers": 0}, ["workers", "greater than 0"]),
        ({"workers": 10**20}, ["workers", "less than or equal to 4096"]),
        ({"connect_to": {"a.test": "b.test"}}, ["connect_to", "'a.test'", "'b.test'", "address:port"]),
        ({"connect_to": {"a.test": "127.0.0.1:x"}}, ["connect_to", "address:port"]),
        ({"download": {"allow_private": ["home"]}}, ["allow_private", "home"]),
        ({"clean": {"language": {"keep": ["zh-cn"]}}}, ["keep", "zh-cn"]),
        ({"clean": {"language": {"keep": "en"}}}, ["clean.language.keep", "a valid list", "write ['en'])"]),
        ({"clean": {"language": {"keep": []}}}, ["keep: list should have at least 1 item, not 0"]),
        ({"clean": {"split": {"valid": 0.7, "test": 0.6}}}, ["0.7", "0.6", "below 1"]),
        ({"limits": {"clena": 0.5}}, ["limits.clena", "'limits.clean'"]),
        ({"clean": "gopher"}, ["clean is a group of settings; set one of them: clean.min_tokens, "]),
        ({"clean": {"filters": {"pii": True}}}, ["clean.filters.pii is a group", "clean.filters.pii.emails"]),
        ({"limits": {"clean": 1.5}}, ["limits.clean", "less than or equal to 1"]),
    ],
)
def test_wrong_settings_are_found_before_anything_starts(
    inputs: Path, tmp_path: Path, flags: dict[str, Any], said: list[str]
) -> None:
    chosen = {"urls": ["{}/urls.txt"], "output": str(tmp_path / "out"), **flags}
    given = json.loads(json.dumps(chosen).replace("{}", str(inputs)))
    config = given.pop("config", None)
    with pytest.raises(UserError) as raised:
        dataprep.planned(resolve(DataprepSettings, config, given)).check()
    for part in said:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError) as dry:
        dataprep.planned(resolve(DataprepSettings, config, {**given, "dry_run": True})).dry_run(print)
    assert str(dry.value) == str(raised.value)


def test_good_input_passes(inputs: Path, tmp_path: Path) -> None:
    connect_to = {"a.test": "127.0.0.1:80", "b.test": "[::1]:443"}
    given = {"urls": [str(inputs / "urls.txt")], "output": str(tmp_path / "out"), "connect_to": connect_to}
    dataprep.planned(resolve(DataprepSettings, None, given)).check()


def run_in(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("name", ["tasks.py", "gpt2train/__init__.py"])
def test_a_file_that_hides_a_package_is_named(name: str, tmp_path: Path) -> None:
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    file.write_text("raise AssertionError('imported')\n")
    done = run_in(tmp_path, "-m", "flows.dataprep", "--help")
    package = name.partition("/")[0].removesuffix(".py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {file} hides the package {package} of gpt2train; use `gpt2train flow`, ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_home_of_prefect_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "prefect").symlink_to("prefect")  # refused to root too, as that of another user is to others
    done = run_in(tmp_path, "-P", "-m", "flows.dataprep", "--dry-run")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: cannot read {tmp_path / 'prefect'} (")
    assert run_in(tmp_path, "-P", "-m", "flows.dataprep", "--help").returncode == 0


def test_a_missing_home_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker run --user 54321` has none; Prefect asks for it also if PREFECT_HOME is set."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setenv("PREFECT_HOME", "/tmp/prefect")
    with pytest.raises(UserError, match="no home folder, which Prefect needs; set HOME to a folder that you own"):
        check_home()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which root cannot write either")
def test_a_home_of_prefect_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "PREFECT_HOME": "/proc/nowhere/prefect", "PREFECT_API_URL": ""}
    command = [sys.executable, "-P", "-m", "flows.dataprep", "--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: cannot ") and "set PREFECT_HOME to a folder that you own" in done.stderr


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("[", r"{}/prefect/profiles\.toml is not valid TOML: "),
        (
            'PREFECT_LOGGING_LEVEL = "loud"',
            r"Prefect refuses its settings: PREFECT_LOGGING_LEVEL: .* or in {}/prefect/",
        ),
    ],
)
def test_a_wrong_setting_of_prefect_is_named(tmp_path: Path, profile: str, said: str) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect/profiles.toml").write_text(f'active = "site"\n[profiles.site]\n{profile}\n')
    done = run_in(tmp_path, "-P", "-m", "flows.dataprep", "--dry-run")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert re.match(f"error: {said.format(re.escape(str(tmp_path)))}", done.stderr)


@pytest.mark.slow
def test_the_command_of_a_flow_does_not_look_into_the_folder(tmp_path: Path) -> None:
    """The option `-P` leaves the folder out of the path, as a console script does."""
    for package in ("flows", "tasks", "gpt2train"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')\n")
    done = run_in(tmp_path, "-P", "-m", "gpt2train", "flow", "dataprep", "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith("steps "), done.stdout + done.stderr
    done = run_in(tmp_path, "-P", "-m", "gpt2train", "flow", "dataprep", "--workers", "none", "--debug")
    assert done.returncode == 2 and "Traceback" in done.stderr and "error: --workers" in done.stderr
