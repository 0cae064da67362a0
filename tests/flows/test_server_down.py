"""A configured Prefect server that does not answer: an error before anything else starts."""

import socket
from pathlib import Path

import pytest

from flows.orchestration.server import configured_server, prefect_server
from gpt2train.errors import UserError


@pytest.fixture
def unused_address() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/api"


def test_an_unreachable_server_is_named_with_the_remedy(unused_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", unused_address)
    with pytest.raises(UserError, match=rf"no Prefect server answers at {unused_address} \(.*refused\); start it"):
        prefect_server().__enter__()


def test_an_unreachable_server_of_the_profile_is_named(
    unused_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_PROFILE", raising=False)
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    assert configured_server() is None
    profiles.write_text(f'active = "site"\n[profiles.site]\nPREFECT_API_URL = "{unused_address}"\n')
    assert configured_server() == unused_address
    with pytest.raises(UserError, match=f"no Prefect server answers at {unused_address}"):
        prefect_server().__enter__()


def test_an_address_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "127.0.0.1:4200/api")
    with pytest.raises(UserError, match=r"answers at 127\.0\.0\.1:4200/api"):
        prefect_server().__enter__()
