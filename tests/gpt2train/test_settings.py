"""Settings, plug-ins and errors of the engine, and what its doctor finds."""

import importlib
import importlib.metadata
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train import doctor
from gpt2train.cli import app, run_command
from gpt2train.errors import RunError, UserError, redact, redact_error, redact_values, redacted_traceback
from gpt2train.plugins import Registry
from gpt2train.settings import PositiveNumber, Settings, build, described, flatten, read_toml


class Inner(Settings):
    steps: PositiveNumber = 1


class Outer(Settings):
    steps: int = 1
    rate: float = 0.5
    optional: PositiveNumber | None = None
    either: int | str = 1
    pair: tuple[float, float] = (0.9, 0.95)
    inner: Inner = Inner()
    on: bool = False
    any_of: bool | int = 3
    options: dict[str, Any] = {}
    switch: bool | str = "auto"


SOURCE = '''
from pydantic import Field
from gpt2train.settings import Settings

class Leaf(Settings{config}):
    """A leaf."""
    size: int = 1
    """Size of it, in two
    lines.
    """
    plain: int = 2
    named: int = Field(3, description="given")
    """not this one"""

class Base(Settings{config}):
    rate: float = 0.5
    r"""A rate, \\d."""

if True:
    class Root(Base{config}):
        many: tuple[Leaf, ...] = ()
        """Leaves."""
        maybe: Leaf | None = None
        own: Leaf = Leaf()
        "Own leaf."
'''


def test_descriptions_are_those_that_pydantic_reads_from_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, config in (("ours", ""), ("theirs", ", use_attribute_docstrings=True")):
        (tmp_path / f"{name}_described.py").write_text(SOURCE.replace("{config}", config))
    ours, theirs = (importlib.import_module(f"{name}_described").Root for name in ("ours", "theirs"))
    assert "description" not in str(ours.model_json_schema()["properties"])
    assert described(ours).model_json_schema() == theirs.model_json_schema()
    (tmp_path / "ours_described.py").write_text("# changed while it runs\n")  # then there are none
    made = type("Later", (importlib.import_module("ours_described").Leaf,), {"__module__": "ours_described"})
    assert described(made).model_fields["named"].description == "given"


def test_nested_names_are_joined_by_dots_in_their_order() -> None:
    nested = {"b": {"y": 1, "x": {"deep": [2, {"kept": 3}]}}, "a": None, "none": {}, 7: "number"}
    flat = flatten(nested)  # type: ignore[arg-type]  # files of others have other keys than texts
    assert list(flat.items()) == [("b.y", 1), ("b.x.deep", [2, {"kept": 3}]), ("a", None), ("7", "number")]


def test_a_file_of_an_editor_of_windows(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes('\ufeffabout = "é"\r\n[train]\r\nsteps = 3\r\n'.encode())
    assert read_toml(tmp_path / "a.toml") == {"about": "é", "train": {"steps": 3}}
    (tmp_path / "b.toml").write_text("steps = 3\n", encoding="utf-16")  # what > writes in PowerShell 5
    with pytest.raises(UserError, match=r"b\.toml: it is UTF-16, not UTF-8; convert it: iconv"):
        read_toml(tmp_path / "b.toml")


def test_a_boolean_is_no_number_and_is_kept_where_a_setting_takes_one() -> None:
    wrong = {"steps": True, "rate": False, "either": True, "pair": [0.9, True], "optional": True}
    for values in ({"inner": {"steps": True}}, *({name: value} for name, value in wrong.items())):
        [place] = flatten(values)
        with pytest.raises(UserError, match=rf"^run.toml: {place}: input should be a number, not a boolean"):
            build(Outer, values, source="run.toml")
    built = build(Outer, {"on": True, "any_of": True, "options": {"qk_norm": True}, "switch": False})
    assert (built.on, built.any_of, built.options, built.switch) == (True, True, {"qk_norm": True}, False)


def install(folder: Path, name: str, source: str) -> None:
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[gpt2train]\n{name} = {name}\n")


def python(folder: Path, code: str) -> "subprocess.CompletedProcess[str]":
    path = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    return subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=60)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    registry: Registry[int] = Registry("launcher")
    registry.register("local", 1)
    registry.register("ssh", 2)
    assert (registry["ssh"], list(registry)) == (2, ["local", "ssh"])
    assert "local" in registry and "other" not in registry
    with pytest.raises(UserError, match="there is no launcher 'other'; choose from local, ssh"):
        registry["other"]
    with pytest.raises(UserError, match="two launchers are named ssh"):
        registry.register("ssh", 3)
    for name in ("", "Upper", "with-hyphen", "../folder", "1st", "two words"):
        with pytest.raises(UserError, match="a name has lower-case letters, digits and _; rename it"):
            registry.register(name, 4)


def test_installed_plug_ins_are_imported_before_a_registry_is_read(tmp_path: Path) -> None:
    install(tmp_path, "second", "from gpt2train import plugins; plugins.TEST.register('b', 2)")
    install(tmp_path, "first", "from gpt2train import plugins; plugins.TEST.register('a', 1)")
    code = (
        "from gpt2train import plugins; plugins.TEST = plugins.Registry('number'); "
        "plugins.TEST.register('zero', 0); print(plugins.TEST.items(), plugins.load_plugins())"
    )
    done = python(tmp_path, code)
    assert done.stdout == "[('zero', 0), ('a', 1), ('b', 2)] {'first': '1.5', 'second': '1.5'}\n", done.stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("raise ValueError('first line\\n  second line')", "ValueError: first line second line"),
    ],
)
def test_a_broken_plug_in_is_named_in_one_line(tmp_path: Path, source: str, reason: str) -> None:
    install(tmp_path, "broken", source)
    done = python(tmp_path, "from gpt2train import plugins; plugins.load_plugins()")
    line = f"plug-in broken cannot be imported ({reason}); repair or uninstall it\n"
    assert done.stderr.endswith(f"UserError: {line}"), done.stderr
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command, env = [sys.executable, "-m", "flows.dataprep", "--help"], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {line}")


# No white space: an address ends there. Every secret begins with a letter, as `1234/…` after a colon is a port.
CHARACTERS = st.sampled_from("abzABZ059-._~!$&'()*+,;=:@/%\"\\[]{}|^`äß")
SECRETS = st.text(CHARACTERS, max_size=12).map(lambda text: f"Xk{text}qZ")
HOSTS = st.sampled_from(["host.example", "127.0.0.1:8080", "[::1]:9000", "bucket", "localhost"])
SCHEMES = st.sampled_from(["http", "https", "s3", "S3A", "gs", "ftp", "simplecache::https", "zip://*.txt::https"])
AROUND = st.sampled_from(
    ["{}", "cannot read {}: no such file", "'{}'", '"{}", "b"', "({})", "x {} y", "url={};", "<{}>"]
)


@given(SCHEMES, st.sampled_from(["://", ":/", ":///"]), SECRETS, SECRETS, HOSTS, AROUND, st.booleans())
@settings(max_examples=400, deadline=None)
def test_user_names_and_passwords_are_removed(
    scheme: str, slashes: str, user: str, password: str, host: str, around: str, named: bool
) -> None:
    # Without a password the name is the secret, as a token is; it cannot hold a slash.
    user = user.replace("/", "").replace(":", "").replace("@", "")
    address = f"{scheme}{slashes}{user}:{password}@{host}/folder/list.txt" if named else ""
    address = address or f"{scheme}{slashes}{password.replace('/', '')}@{host}/folder/list.txt"
    said = redact(around.format(address))
    assert password not in said and (user not in said or not named)
    # A chain of addresses, or a question mark in a password: more may be taken out.
    whole = around.format(f"{scheme}{slashes}…@{host}/folder/list.txt")
    assert said == whole or "::" in scheme or "?" in address or "#" in address


@given(SCHEMES, HOSTS, st.lists(st.tuples(st.sampled_from(["X-Amz-Signature", "sig", "token"]), SECRETS)), AROUND)
@settings(max_examples=400, deadline=None)
def test_queries_are_removed(scheme: str, host: str, pairs: list[tuple[str, str]], around: str) -> None:
    for sign in "?#":
        query = sign + "&".join(f"{name}={secret}" for name, secret in pairs) if pairs else ""
        said = redact(around.format(f"{scheme}://{host}/list.txt{query}"))
        assert not [secret for _, secret in pairs if secret in said]
        # An @ in the query may be the one before the host: more may be taken out.
        assert f"://{host}/list.txt" in said or "::" in scheme or "@" in query


@given(SECRETS, st.sampled_from(["{}", "bucket name 'k:{}'", "user {} refused", "401, message='{}'"]))
@settings(max_examples=300, deadline=None)
def test_secrets_repeated_by_a_library_are_removed(secret: str, around: str) -> None:
    for form in (secret, quote(secret, safe="")):
        for address in (f"https://k:{form}@host/list.txt", f"https://host/a?X-Amz-Signature={quote(secret, safe='')}"):
            for repeated in (secret, quote(secret, safe="")):
                assert repeated not in redact(around.format(repeated), address)


def test_text_without_a_secret_is_unchanged() -> None:
    for text in ("s3://bucket/part-*.txt", "https://host:8080/a/b.txt", "me@x.org", "a/b@c", "C:/x y@z", "12:30, 3@4"):
        assert redact(text) == text
    assert redact("see https://me:pw@h.org/a?sig=1&k=2 and s3://b/c") == "see https://…@h.org/a?… and s3://b/c"
    assert redact("https://host:80/@name/x") == "https://host:80/@name/x"
    assert redact("('https://h/a?sig=1', 2)") == "('https://h/a?…', 2)"


def test_values_and_errors_are_redacted() -> None:
    value = {"urls": ["https://u:pw@h/l?sig=x"], "n": 3, "https://u:pw@h": None}
    assert redact_values(value) == {"urls": ["https://…@h/l?…"], "n": 3, "https://…@h": None}
    for error in (
        ValueError("bad https://u:pw@h"),
        FileNotFoundError(2, "No such file", "https://u:pw@h"),
        KeyError("https://u:pw@h"),
    ):
        assert "pw" not in str(redact_error(error)) and type(redact_error(error)) is type(error)

    class Odd(ConnectionError):
        def __str__(self) -> str:
            return "at https://u:pw@h"

    assert str(redact_error(Odd())) == "Odd: at https://…@h" and isinstance(redact_error(Odd()), RunError)


def test_a_traceback_shows_no_secret_from_its_causes() -> None:
    with pytest.raises(UserError) as caught:
        try:
            raise ValueError("https://u:pw@h/l?sig=x")
        except ValueError as error:
            raise UserError("cannot read it") from error
    assert "pw@" in "".join(traceback.format_exception(caught.value))
    assert "pw@" not in redacted_traceback(caught.value) and "sig=x" not in redacted_traceback(caught.value)


def test_the_page_names_versions_devices_and_extras(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a secret")
    assert run_command(app, ["doctor"]) == 0
    page = capsys.readouterr().out
    assert f"\ntorch       {torch.__version__}, built for " in page
    assert f"numpy {importlib.metadata.version('numpy')}" in page and "\nextras " in page
    assert "a secret" not in page and "\n\n" not in page


def test_a_torch_that_cannot_be_imported_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TORCH", "raise OSError('libcudart.so.13: cannot open shared object file')")
    expected = ", which cannot be imported: OSError: libcudart.so.13: cannot open shared object file"
    assert dict(doctor.lines())["torch"].endswith(expected)


def test_an_extra_lacks_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1", 'no-such-package>=2; extra == "odd"', "pyarrow; extra == 'odd'", 'rich>=13; extra == "ui"']
    wanted.append("old-package; python_version < '3' and extra == 'ui'")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor, "TORCH", "")
    lines = list(doctor.lines())
    assert ("extras", "ui") in lines and ("", "odd lacks no-such-package") in lines
    assert [one.split()[0] for one in dict(lines)["packages"].split(", ")] == ["numpy", "pyarrow", "rich"]

    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)  # of a checkout that is not installed
    assert dict(doctor.lines())["extras"] == "none"
