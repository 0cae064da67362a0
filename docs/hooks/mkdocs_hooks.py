"""Hooks of `mkdocs build`: generated pages, figures rendered while building, no request to another host."""

import hashlib
import logging
import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any
from urllib.parse import urlsplit

import mermaidx
import names_reference
import settings_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.superfences import SuperFencesException

log = logging.getLogger("mkdocs.hooks.gpt2train")
ROOT = Path(__file__).parents[2]
# Pages of the repository's root that the site shows too, under Develop.
ROOT_PAGES = {name: f"develop/{name.lower()}" for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
SOURCES = {target: name for name, target in ROOT_PAGES.items()}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`]+`")
# What a browser fetches by itself; a link that a reader follows is none of them.
FETCHED = re.compile(r"<(?:script|img|iframe|source|video|link)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Render mermaid, and replace each pattern of the navigation by the pages that match."""
    fences = [{"name": "mermaid", "class": "mermaid", "format": draw}]
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = fences
    config.nav = _expanded(config.nav or [], Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root."""
    for name, target in ROOT_PAGES.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, target, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt a page, written for a viewer of the repository, to the site.

    Pages of the settings get their generated sections. Links lead to pages of the site; a file that the site lacks is
    named without a link. A `|` in the code of a table needs no backslash here, which would be shown.
    """
    uri = page.file.src_uri
    source = SOURCES.get(uri, f"docs/{uri}")
    targets = {**ROOT_PAGES, "README.md": "index.md"}
    if uri in settings_reference.PAGES:
        markdown += "\n" + settings_reference.page(uri)
    if uri == names_reference.PAGE:
        markdown += "\n" + names_reference.page()

    def resolved(link: re.Match[str]) -> str:
        text, address, fragment = link.groups(default="")
        if urlsplit(address).scheme:
            return link[0]
        target = normpath(f"{dirname(source)}/{address}".lstrip("/"))
        in_site = targets.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if in_site is None:
            return text if (ROOT / target).exists() else link[0]
        return f"[{text}]({relpath(in_site, dirname(uri) or '.')}{fragment})"

    lines = LINK.sub(resolved, markdown).split("\n")
    return "\n".join(CODE.sub(lambda code: code[0].replace("\\|", "|"), x) if x.startswith("|") else x for x in lines)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn, which fails a strict build, if a page would make the browser fetch from another host."""
    for address in FETCHED.findall(output):
        log.warning("%s fetches %s", page.file.src_uri, address)
    return output


def draw(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """An SVG figure from mermaid's text, rendered in this process.

    Raises:
        SuperFencesException: the text is not mermaid's.
    """
    try:
        figure = mermaidx.render(source).svg()
    except RuntimeError as error:
        raise SuperFencesException(f"{error}\n{source}") from error
    name = f"figure-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return f'<div class="figure">{figure.replace("my-svg", name)}</div>'


def _expanded(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation with pages in place of patterns such as `decisions/*.md`, without missing pages of the root."""
    entries: list[Any] = []
    for entry in nav:
        [(title, target)] = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(target, list):
            entries.append({title: _expanded(target, docs)})
        elif "*" in target:
            pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob(target))
            entries += [{title: pages}] if pages else []
        elif (ROOT / SOURCES.get(target, ".")).exists():
            entries.append(entry)
    return entries
