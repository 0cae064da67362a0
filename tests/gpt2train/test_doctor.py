"""`gpt2train doctor`: one page that a bug report can carry."""

import importlib.metadata

import pytest
import torch

from gpt2train import doctor
from gpt2train.cli import app, run_command


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


def test_a_checkout_that_is_not_installed_has_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    monkeypatch.setattr(doctor, "TORCH", "")
    assert dict(doctor.lines())["extras"] == "none"
