"""The data flow over an adversarial corpus: it ends, gives a reason for each rejected page, in bounded memory."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpt2train.store.manifest import Folder, read_manifest
from tasks.core.shards import read_rows
from tests.flows.mini_pipeline import Mini
from tests.flows.network_audit import SITECUSTOMIZE, NetworkAudit, is_this_machine
from tests.tasks.hostile_pages import KEPT, SECRET, Case, answers, article, bodies, html, write_archive, write_lines
from tests.tasks.web_server import running_site

GOOD = 24
MEGABYTES = 2000  # all processes of the flow together, Prefect's server (250) among them
# DNS rebinding: the first answer is allowed, the next is not; and an answer that has both kinds of addresses.
RESOLVER = """
import socket
_count = {}
def _answer(host, port, *args, **options):
    _count[host] = _count.get(host, 0) + 1
    if str(host).startswith("rebind"):
        found = ["127.0.0.1"] if _count[host] == 1 else ["169.254.169.254"]
    elif str(host).startswith("mixed"):
        found = ["127.0.0.1", "169.254.169.254"]
    elif host in ("127.0.0.1", "localhost", "0.0.0.0", None):
        found = ["127.0.0.1"]
    else:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0)) for address in found]
socket.getaddrinfo = _answer
"""
SETTINGS = """
workers = 2
[blacklist]
shard_rows = 40
[download]
per_host = 4
delay = 0
deadline = 4
body_deadline = 2
backoff = 0
attempts = 2
allow_private = ["127.0.0.1/32"]
[extract]
deadline = 10
memory_mb = 400
[tokenizer]
vocab_size = 600
"""


def own_memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def write_settings(mini: Mini, port: int, source: str) -> None:
    passages = "".join(f'{{"text": "the harbour number {n} was never seen by the harbour"}}\n' for n in range(3))
    (mini.folder / "lambada.jsonl").write_text(passages)
    (mini.folder / "mini.toml").write_text(
        f"{source}\nlambada = '{mini.folder}/lambada.jsonl'\n"
        + SETTINGS.replace("allow_private", f"ports = [80, 443, {port}]\nallow_private")
        + f"[connect_to]\n'*.hostile.test' = '127.0.0.1:{port}'\n'inside.test' = '169.254.169.254:80'\n"
    )


def ended_with(output: Path) -> dict[str, str]:
    """URL -> its reject reason, or KEPT for documents in the tokens; each URL once."""
    found: dict[str, str] = {}
    for manifest_path in sorted(output.glob("*/_manifest.json")):
        folder = Folder(manifest_path.parent)
        manifest = read_manifest(folder)
        assert manifest is not None
        if manifest.step == "cloze":
            continue
        for record in manifest.outcome.rejected:
            for row in read_rows(folder, record.name):
                name = row["url"] or row["detail"].partition(":")[0]  # the file and row, where there is no URL
                assert name not in found, row
                found[name] = row["reason"]
        if manifest.step == "tokenize":
            for record in manifest.outcome.files:
                if record.name.endswith("documents.parquet"):
                    found.update(dict.fromkeys((row["url"] for row in read_rows(folder, record.name)), KEPT))
    return found


@pytest.fixture
def isolated(tmp_path: Path) -> Iterator[Mini]:
    """Commands that cannot resolve names, and whose connections are recorded."""
    mini = Mini(tmp_path / "mini", {})
    mini.environment = NetworkAudit(mini.folder).environment()
    (mini.folder / "hook" / "sitecustomize.py").write_text(SITECUSTOMIZE + RESOLVER)
    yield mini
    mini.wait_for_the_end()


def run(mini: Mini, output: Path) -> "tuple[subprocess.CompletedProcess[str], float]":
    peaks, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            peaks.append(sum(map(own_memory, mini.children())))

    (watcher := threading.Thread(target=watch, daemon=True)).start()
    done = mini.run("dataprep", "--output", str(output), timeout=600)
    ended.set()
    watcher.join()
    return done, max(peaks) / 2**20


def check_silence(mini: Mini, done: "subprocess.CompletedProcess[str]") -> None:
    """No text was printed or sent to Prefect, and no other host was connected to."""
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    home = Path(mini.environ()["PREFECT_HOME"])
    for file in home.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    connects = {host for _, what, host in NetworkAudit(mini.folder).notes() if what == "connect"}
    assert connects and all(map(is_this_machine, connects)), connects


def check_reasons(found: dict[str, str], expected: dict[str, tuple[str, ...]]) -> None:
    """Check that every URL has exactly one accepted outcome."""
    assert found.keys() == expected.keys()
    wrong = [f"{name}: {found[name]!r}, not in {expected[name]}" for name in found if found[name] not in expected[name]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.alone  # pages have time limits of seconds, and the memory of all processes is bounded
def test_an_adversarial_site_is_processed_over_http(isolated: Mini, tmp_path: Path) -> None:
    cases: dict[str, Case] = dict(answers())
    for name, (body, reasons) in bodies(20).items():
        cases[f"body-{name}"] = Case(lambda h, body=body: h.answer(body), reasons)  # type: ignore[misc]
    expected: dict[str, tuple[str, ...]] = {}
    with running_site() as site:
        port = int(site.address.rpartition(":")[2])
        for name, case in cases.items():
            site.handlers[f"/{name}"] = case.send
            expected[f"http://{name}.hostile.test/{name}"] = case.reasons
        for number in range(GOOD):
            page = html(article(100 + number))
            site.handlers[f"/good-{number}"] = lambda h, page=page: h.answer(page, Connection="close")  # type: ignore[misc]
            expected[f"http://good.hostile.test/good-{number}"] = (KEPT,)
        # The connection is closed, so that the name is looked up again, when it has another address.
        site.handlers["/to-itself"] = lambda h: h.answer(b"", status=302, Location="/rebound", Connection="close")
        rebound = html(article(99))
        site.handlers["/rebound"] = lambda h: h.answer(rebound)
        expected |= {
            f"http://rebind.test:{port}/to-itself": ("not_public_address", KEPT),  # kept: from the first address
            f"http://mixed.test:{port}/good-0": ("not_public_address",),
            "http://inside.test/": ("not_public_address",),
            "http://169.254.169.254/latest/meta-data/": ("not_public_address",),
            "http://[fd00:ec2::254]/latest/": ("not_public_address",),
            "http://nowhere.invalid/page": ("dns_failed",),
            "file:///etc/passwd": ("malformed",),
            "http://0x7f.1/": ("malformed",),
            "http://good.hostile.test/\udcff": ("malformed",),
            "http://good.hostile.test/" + "a" * 100_000: ("too_long",),
        }
        (isolated.folder / "urls.txt").write_text("".join(f"{url}\n" for url in expected), errors="surrogateescape")
        write_settings(isolated, port, f"urls = ['{isolated.folder}/urls.txt']")
        began = time.monotonic()
        done, megabytes = run(isolated, tmp_path / "out")
        print(f"{time.monotonic() - began:.1f} s, {megabytes:.0f} MB", file=sys.stderr)
    assert done.returncode == 0, done.stderr
    check_silence(isolated, done)
    found = ended_with(tmp_path / "out")
    expected["row 73"] = expected.pop("http://good.hostile.test/" + "a" * 100_000)
    expected["http://good.hostile.test/\ufffd"] = expected.pop("http://good.hostile.test/\udcff")
    check_reasons(found, expected)
    assert megabytes < MEGABYTES


@pytest.mark.exhaustive
@pytest.mark.alone
def test_adversarial_archives_and_json_lines_are_processed(isolated: Mini, tmp_path: Path) -> None:
    expected = write_archive(tmp_path / "hostile.warc.gz") | write_lines(tmp_path)
    sources = f"warcs = ['{tmp_path}/hostile.warc.gz']\ndocuments = ['{tmp_path}/*.jsonl*']"
    write_settings(isolated, 80, sources)
    done, megabytes = run(isolated, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    check_silence(isolated, done)
    check_reasons(ended_with(tmp_path / "out"), expected)
    assert megabytes < MEGABYTES
