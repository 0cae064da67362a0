"""Cards of a corpus after a refresh and after a removal: their numbers are those of the manifests that stand then."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.folder import Folder
from tasks.outputs.forget.command import forget
from tasks.outputs.passport.facts import SOURCES
from tasks.outputs.passport.write import write_passport
from tests.tasks.cloze.test_step import story
from tests.tasks.outputs.forget.corpus import PAGES, html, run_flow
from tests.tasks.web_server import Site


def manifest(out: Path, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / folder / "_manifest.json").read_text())
    return found


def rows_of_card(out: Path) -> set[str]:
    """Rows that the card must have, by the manifests alone."""
    rows = set()
    for folder in ("pages", "warcs", "webpages", "texts"):
        made = manifest(out, folder)
        rows.add(f"| {SOURCES[made['step']]} | {made['outcome']['seen']:,} | {made['outcome']['kept']:,} |")
    for reason, count in manifest(out, "pages")["outcome"]["reasons"].items():
        rows.add(f"| download | {reason.replace('_', ' ')} | {count:,} |")
    facts = manifest(out, "tokens")["outcome"]["facts"]
    return rows | {f"{facts['train_tokens']:,}"}


def card_of(out: Path) -> str:
    write_passport(Folder(out))
    return (out / "passport/README.md").read_text()


@pytest.mark.exhaustive
def test_cards_follow_a_refresh_and_a_removal(
    out: Path, settings: dict[str, Any], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, expected = card_of(out), rows_of_card(out)
    assert all(row in first for row in expected), expected
    changed = html(f"{story('Quentin')} {story('Zora')}")
    monkeypatch.setitem(site.handlers, "/5", lambda handler: handler.answer(changed, "text/html; charset=utf-8"))
    monkeypatch.setitem(site.handlers, "/6", lambda handler: handler.answer(b"", status=404))
    run_flow(out, settings | {"refresh": True})
    second, refreshed = card_of(out), rows_of_card(out)
    assert all(row in second for row in refreshed), refreshed
    assert len(refreshed - expected) >= 3 and any(row not in first for row in refreshed)
    forget(PAGES, output=str(out), yes=True)
    run_flow(out, settings)
    third, forgotten = card_of(out), rows_of_card(out)
    assert all(row in third for row in forgotten), forgotten
    assert "| download | forgotten |" in third and "| download | forgotten |" not in second
    assert len(forgotten - refreshed) >= 3
