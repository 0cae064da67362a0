"""Registries, and plug-ins that are installed beside the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.plugins import Registry


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
    assert f"UserError: plug-in broken cannot be imported ({reason}); repair" in done.stderr, done.stderr


def test_a_broken_plug_in_is_one_line_of_a_flow(tmp_path: Path) -> None:
    install(tmp_path, "broken", "1 / 0")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command, env = [sys.executable, "-m", "flows.dataprep", "--help"], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    line = "error: plug-in broken cannot be imported (ZeroDivisionError: division by zero); repair or uninstall it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
