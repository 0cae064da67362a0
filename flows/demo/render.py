"""Documentation pages in plain, semantic HTML, rendered with the standard library's pydoc.

pydoc's own layout puts everything into tables and definition lists, of which text extractors keep a fraction. Here
headings are headings, prose is paragraphs and examples are preformatted. A page depends only on the Python version and
the installed packages: it has no addresses, paths or values (data are listed by name, constants also by type). Some
packages format sets into their docstrings on import, so the server runs with a fixed hash seed.
"""

import importlib
import inspect
import pydoc
import pydoc_data.topics
import re
import textwrap
import types
from collections.abc import Iterator
from html import escape
from typing import Any

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
UNDERLINE = re.compile(r"([=\-~*^\"#+])\1{2,}\s*")
BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)])\s+")
SIMPLE = (int, float, bool, type(None), str, bytes, type, types.FunctionType, types.BuiltinFunctionType)
MAX_DEFAULT_CHARS = 40
# Docstrings of `object`'s own methods, which undocumented methods inherit.
INHERITED_DOCS = frozenset(pydoc.getdoc(getattr(object, name)) for name in ("__init__", "__new__"))
DUNDERS = ("__init__", "__call__", "__new__")


class SemanticDoc(pydoc.HTMLDoc):
    """HTML formatter of pydoc with headings and paragraphs instead of tables."""

    def markdown(self, text: str, level: int) -> str:
        """Render a docstring or a page of the reference: headings, paragraphs, lists, examples."""
        return "\n".join(blocks(ADDRESS.sub("", text), level))

    def docmodule(self, object: Any, name: str | None = None, mod: Any = None, *ignored: Any) -> str:
        """Render the article of one module."""
        public = getattr(object, "__all__", None)
        parts = [f"<h1>{escape(name or object.__name__)}</h1>", self.markdown(pydoc.getdoc(object), 2)]
        members = [
            (key, value)
            for key, value in inspect.getmembers(object)
            if pydoc.visiblename(key, public, object) and not inspect.ismodule(value)
        ]
        here = [(k, v) for k, v in members if public is not None or inspect.getmodule(v) is object]
        classes = [(k, v) for k, v in here if inspect.isclass(v)]
        routines = [(k, v) for k, v in here if inspect.isroutine(v)]
        if classes:
            parts += ["<h2>Classes</h2>", *(self.docclass(value, key) for key, value in classes)]
        if routines:
            parts += ["<h2>Functions</h2>", *(self.docroutine(value, key) for key, value in routines)]
        data = [(k, v) for k, v in members if not (inspect.isclass(v) or inspect.isroutine(v) or k.startswith("__"))]
        if data:
            # Only constants get a type: the value of a variable can depend on earlier imports.
            items = "".join(
                f"<li><code>{escape(k)}</code>{': ' + escape(type(v).__name__) if k.isupper() else ''}</li>"
                for k, v in data
            )
            parts += ["<h2>Data</h2>", f"<ul>{items}</ul>"]
        return "\n".join(part for part in parts if part)

    def docclass(self, object: Any, name: str | None = None, mod: Any = None, *ignored: Any, **more: Any) -> str:
        """Render one class: its bases, its text, and the methods that it defines itself."""
        bases = ", ".join(base.__name__ for base in object.__bases__ if base is not type(None))
        parts = [f"<h3>class {escape(name or object.__name__)}({escape(bases)})</h3>"]
        parts.append(self.markdown(pydoc.getdoc(object), 4))
        for key, kind, home, value in sorted(pydoc.classify_class_attrs(object), key=lambda item: item[0]):
            shown = key in DUNDERS or (pydoc.visiblename(key, obj=object) and not key.startswith("__"))
            if home is not object or not shown:
                continue
            if kind in ("method", "class method", "static method") and inspect.isroutine(value):
                parts.append(self.docroutine(value, key, level=4))
            elif kind in ("property", "data descriptor", "readonly property") and (text := pydoc.getdoc(value)):
                parts += [f"<h4>{escape(key)}</h4>", self.markdown(text, 5)]
        return "\n".join(part for part in parts if part)

    def docroutine(self, object: Any, name: str | None = None, mod: Any = None, *ignored: Any, level: int = 3) -> str:
        """Render one function or method: signature and text; empty if it has no documentation of its own."""
        heading = f"<h{level}>{escape((name or object.__name__) + signature(object))}</h{level}>"
        doc = pydoc.getdoc(object)
        text = "" if doc in INHERITED_DOCS else self.markdown(doc, level + 1)
        return f"{heading}\n{text}" if text else ""


def module_article(name: str) -> str:
    """Import a module and render its article.

    Raises:
        ImportError: the module is not installed, or cannot be imported.
    """
    return SemanticDoc().docmodule(importlib.import_module(name), name)


def topic_article(topic: str) -> str:
    """Render the article of one topic of the language reference."""
    return SemanticDoc().markdown(pydoc_data.topics.topics[topic], 1)


def signature(routine: Any) -> str:
    """Format the signature of a routine; defaults that are not simple values become `...`."""
    try:
        found = inspect.signature(routine)
    except (ValueError, TypeError):
        return "(...)"
    plain = [
        p.replace(annotation=inspect.Parameter.empty, default=_default(p.default)) for p in found.parameters.values()
    ]
    return ADDRESS.sub("", str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty)))


class _Literal:
    """Default value with a given representation."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    if not isinstance(value, SIMPLE):
        return _Literal("...")
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return _Literal(value.__name__)
    text = repr(value)
    return _Literal(text if len(text) <= MAX_DEFAULT_CHARS and "/" not in text else "...")  # a slash may be a path


def blocks(text: str, level: int) -> Iterator[str]:
    """Convert plain documentation into HTML blocks, with headings from a level on.

    Lines of one indentation form one paragraph. Text that is indented after `::`, or starts with a prompt, is an
    example.
    """
    lines = [*(line.rstrip() for line in text.expandtabs().split("\n")), "", ""]
    depths = [len(line) - len(line.lstrip()) for line in lines]
    index, code = 0, False
    while index < len(lines) - 2:
        line, depth, underline = lines[index].strip(), depths[index], lines[index + 1].strip()
        end = index + 1
        if not line:
            pass
        elif UNDERLINE.fullmatch(underline) and depths[end] == depth:
            rank = min(level + (underline[0] in '~^"'), 6)
            yield f"<h{rank}>{escape(line)}</h{rank}>"
            end, code = index + 2, False
        elif line.startswith(">>>") or (code and depth >= 3):
            while end < len(lines) and (
                depths[end] >= depth if lines[end] else code or lines[end + 1].lstrip().startswith(">>>")
            ):
                end += 1
            example = textwrap.dedent("\n".join(lines[index:end])).strip("\n")
            yield f"<pre>{escape(example)}</pre>"
            code = False
        else:
            while lines[end] and depths[end] == depth and not BULLET.match(lines[end].lstrip()):
                end += 1
            while BULLET.match(line) and depths[end] > depth:  # the further lines of an item are indented
                end += 1
            paragraph = " ".join(part.strip() for part in lines[index:end])
            code = paragraph.endswith(":")
            bullet = BULLET.match(paragraph)
            bare = paragraph[bullet.end() :] if bullet else ""
            yield f"<ul><li>{escape(bare)}</li></ul>" if bare else f"<p>{escape(paragraph)}</p>"
        index = end
