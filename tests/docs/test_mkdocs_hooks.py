"""Hooks of the documentation site: links, figures, and the guard against other hosts."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("mermaidx", reason="needs the extra docs")

HOOKS = Path(__file__).parents[2] / "docs/hooks"


@pytest.fixture(scope="module")
def hooks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOOKS))
        import mkdocs_hooks  # type: ignore[import-not-found]

        return mkdocs_hooks


def page(uri: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri))


@pytest.mark.parametrize(
    ("uri", "given", "expected"),
    [
        ("data/crawl.md", "[a](tokens.md#files)", "[a](tokens.md#files)"),
        ("data/crawl.md", "[a](../../SECURITY.md#threat-model)", "[a](../develop/security.md#threat-model)"),
        ("data/crawl.md", "![a](../pictures/serve.png)", "![a](../pictures/serve.png)"),
        ("data/crawl.md", "[`step.py`](../../tasks/core/step.py)", "`step.py`"),
        ("data/crawl.md", "[a](../../no-such-file.py)", "[a](../../no-such-file.py)"),
        ("data/crawl.md", "[a](https://example.org/docs/x.md)", "[a](https://example.org/docs/x.md)"),
        ("index.md", "[a](../README.md)", "[a](index.md)"),
        ("commands.md", "| `a \\| b` | c \\| d |\n`e \\| f`", "| `a | b` | c \\| d |\n`e \\| f`"),
        ("develop/security.md", "[a](docs/train/launch.md)", "[a](../train/launch.md)"),
    ],
)
def test_a_page_is_adapted_to_the_site(hooks: Any, uri: str, given: str, expected: str) -> None:
    assert hooks.on_page_markdown(given, page(uri), None, None) == expected


def test_a_page_that_fetches_from_another_host_is_reported(hooks: Any, caplog: pytest.LogCaptureFixture) -> None:
    own = '<script src="../assets/a.js"></script><a href="https://example.org/">link</a><img src="data:image/png;x">'
    with caplog.at_level(logging.WARNING):
        hooks.on_post_page(own, page("index.md"), None)
        assert not caplog.records
        hooks.on_post_page('<link rel="stylesheet" href="https://fonts.example.org/x.css">', page("a.md"), None)
        hooks.on_post_page("<script defer src=//cdn.example.org/x.js></script>", page("b.md"), None)
    assert [record.getMessage() for record in caplog.records] == [
        "a.md fetches https://fonts.example.org/x.css",
        "b.md fetches //cdn.example.org/x.js",
    ]


def test_a_figure_needs_no_script(hooks: Any) -> None:
    drawn = [hooks.draw(f"flowchart LR\n  first --> {name}", "mermaid", "", {}, None) for name in ("one", "two")]
    assert "<svg" in drawn[0] and "first" in drawn[0] and "<script" not in drawn[0]
    identifiers = {figure.split('id="', 1)[1].split('"')[0] for figure in drawn}
    assert len(identifiers) == 2
    with pytest.raises(hooks.SuperFencesException, match="first --"):
        hooks.draw("flowchart LR\n  first --x>> [", "mermaid", "", {}, None)


def test_a_pattern_in_the_navigation_expands_to_its_pages(hooks: Any, tmp_path: Path) -> None:
    (tmp_path / "decisions").mkdir()
    for name in ("0002-b.md", "0001-a.md", "figure.svg"):
        (tmp_path / "decisions" / name).touch()
    nav = [{"Develop": ["a.md", {"Decisions": "decisions/*.md"}, {"None": "missing/*.md"}, "develop/security.md"]}]
    shown = ["decisions/0001-a.md", "decisions/0002-b.md"]
    assert hooks._expanded(nav, tmp_path) == [{"Develop": ["a.md", {"Decisions": shown}, "develop/security.md"]}]
