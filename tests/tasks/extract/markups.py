"""Code as highlighters write it, and formulas as converters do: the same text in many markups."""

import re
from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import quote

WORD = re.compile(r"\w+|\s+|[^\w\s]+")
# Classes of highlighters for parts of code; some are those of containers elsewhere (`meta`, `tag`, `comment`).
HLJS = ["hljs-keyword", "hljs-meta", "hljs-comment", "hljs-title", "hljs-attr", "hljs-tag", "hljs-section"]
PRISM = ["keyword", "comment", "tag", "author", "token", "menu", "important", "doctype", "url", "prolog"]
PYGMENTS = ["k", "n", "p", "c1", "nt", "nb", "sd", "mi", "ow", "hll", "w", "err"]
GITHUB = ["pl-k", "pl-s", "pl-c", "pl-ent", "pl-smi", "pl-ad"]
PRETTIFY = ["kwd", "pln", "com", "tag", "atn", "atv", "pun", "lit"]
CODE_MIRROR = ["cm-keyword", "cm-tag", "cm-meta", "cm-comment", "cm-header", "cm-link", "cm-attribute"]


def tokens(line: str, classes: Sequence[str], form: str = "<span class='{}'>{}</span>") -> str:
    """Line with each word in an element of one of the classes, in turn."""
    parts = WORD.findall(line)
    return "".join(
        escape(part) if part.isspace() else form.format(classes[number % len(classes)], escape(part))
        for number, part in enumerate(parts)
    )


def _numbers(lines: Sequence[str]) -> str:
    return "\n".join(str(number + 1) for number in range(len(lines)))


def _joined(lines: Sequence[str], classes: Sequence[str]) -> str:
    return "\n".join(tokens(line, classes) for line in lines)


def highlight_js(lines: Sequence[str]) -> str:
    return f"<pre><code class='hljs language-html' data-highlighted='yes'>{_joined(lines, HLJS)}\n</code></pre>"


def highlight_js_numbered(lines: Sequence[str]) -> str:
    rows = "".join(
        f"<tr><td class='hljs-ln-line hljs-ln-numbers' data-line-number='{number + 1}'><div class='hljs-ln-n'"
        f" data-line-number='{number + 1}'></div></td><td class='hljs-ln-line hljs-ln-code'>{tokens(line, HLJS)}"
        f"{'' if line else chr(10)}</td></tr>"
        for number, line in enumerate(lines)
    )
    return f"<pre><code class='hljs'><table class='hljs-ln'><tbody>{rows}</tbody></table></code></pre>"


def prism(lines: Sequence[str]) -> str:
    rows = f"<span aria-hidden='true' class='line-numbers-rows'>{'<span></span>' * len(lines)}</span>"
    bar = "<div class='toolbar'><div class='toolbar-item'><button><span>Copy</span></button></div></div>"
    code = _joined(lines, [f"token {name}" for name in PRISM])
    pre = f"<pre class='line-numbers language-css' tabindex='0'><code class='language-css'>{code}{rows}</code></pre>"
    return f"<div class='code-toolbar'>{pre}{bar}</div>"


def pygments(lines: Sequence[str]) -> str:
    return f"<div class='highlight'><pre><span></span>{_joined(lines, PYGMENTS)}\n</pre></div>"


def pygments_table(lines: Sequence[str]) -> str:
    numbers = "\n".join(f"<span class='normal'>{number + 1}</span>" for number in range(len(lines)))
    return (
        f"<div class='highlight'><table class='highlighttable'><tr><td class='linenos'><div class='linenodiv'><pre>"
        f"{numbers}</pre></div></td><td class='code'><div>{pygments(lines)[23:-6]}</div></td></tr></table></div>"
    )


def pygments_inline(lines: Sequence[str]) -> str:
    code = "\n".join(f"<span class='linenos'>{n + 1:3} </span>{tokens(line, PYGMENTS)}" for n, line in enumerate(lines))
    return f"<div class='highlight'><pre>{code}</pre></div>"


def sphinx(lines: Sequence[str]) -> str:
    copy = "<button class='copybtn o-tooltip--left' data-tooltip='Copy'><svg></svg></button>"
    code = _joined(lines, PYGMENTS)
    return (
        "<div class='literal-block-wrapper docutils container' id='id1'><div class='highlight-python3 notranslate'>"
        f"<div class='highlight'><pre id='codecell0'><span></span>{code}\n</pre>{copy}</div></div></div>"
    )


def rouge(lines: Sequence[str]) -> str:
    return (
        "<div class='language-ruby highlighter-rouge'><div class='highlight'><pre class='highlight'><code>"
        f"{_joined(lines, PYGMENTS)}\n</code></pre></div></div>"
    )


def rouge_table(lines: Sequence[str]) -> str:
    return (
        "<div class='language-ruby highlighter-rouge'><div class='highlight'><pre class='highlight'><code>"
        "<table class='rouge-table'><tbody><tr><td class='rouge-gutter gl'><pre class='lineno'>"
        f"{_numbers(lines)}\n</pre></td><td class='rouge-code'><pre>{_joined(lines, PYGMENTS)}\n</pre></td></tr>"
        "</tbody></table></code></pre></div></div>"
    )


def shiki(lines: Sequence[str]) -> str:
    form = "<span style='color:#{}'>{}</span>"
    code = "\n".join(f"<span class='line'>{tokens(line, ['F97583', 'E1E4E8'], form)}</span>" for line in lines)
    return (
        "<div class='language-ts vp-adaptive-theme'><button title='Copy Code' class='copy'></button>"
        "<span class='lang'></span><pre class='shiki github-dark vp-code' tabindex='0' style='color:#e1e4e8'>"
        f"<code>{code}</code></pre></div>"
    )


def chroma(lines: Sequence[str]) -> str:
    code = "".join(f"<span class='line'><span class='cl'>{tokens(line, PYGMENTS)}\n</span></span>" for line in lines)
    return (
        "<div class='highlight'><pre tabindex='0' class='chroma'><code class='language-go' data-lang='go'>"
        f"{code}</code></pre></div>"
    )


def chroma_table(lines: Sequence[str]) -> str:
    numbers = "".join(f"<span class='lnt'>{number + 1}\n</span>" for number in range(len(lines)))
    return (
        "<div class='highlight'><div class='chroma'>\n<table class='lntable'><tr><td class='lntd'>\n<pre tabindex='0'"
        f" class='chroma'><code>{numbers}</code></pre></td>\n<td class='lntd'>\n{chroma(lines)[23:-6]}</td></tr>"
        "</table>\n</div>\n</div>"
    )


def github(lines: Sequence[str]) -> str:
    copy = "<clipboard-copy aria-label='Copy' class='ClipboardButton btn' value='x'><svg></svg></clipboard-copy>"
    return (
        "<div class='highlight highlight-source-python notranslate position-relative overflow-auto' dir='auto'>"
        f"<pre>{_joined(lines, GITHUB)}</pre><div class='zeroclipboard-container'>{copy}</div></div>"
    )


def github_blob(lines: Sequence[str]) -> str:
    rows = "\n".join(
        f"<tr>\n<td id='L{n + 1}' class='blob-num js-line-number' data-line-number='{n + 1}'></td>\n"
        f"<td id='LC{n + 1}' class='blob-code blob-code-inner js-file-line'>{tokens(line, GITHUB) or chr(10)}</td>"
        "\n</tr>"
        for n, line in enumerate(lines)
    )
    return f"<table class='highlight tab-size js-file-line-container' data-tab-size='8'>\n{rows}\n</table>"


def prettify(lines: Sequence[str]) -> str:
    return f"<pre class='prettyprint lang-html prettyprinted' style=''>{_joined(lines, PRETTIFY)}</pre>"


def prettify_numbered(lines: Sequence[str]) -> str:
    items = "".join(f"<li class='L{n % 10}'>{tokens(line, PRETTIFY)}</li>" for n, line in enumerate(lines))
    return f"<pre class='prettyprint linenums prettyprinted'><ol class='linenums'>{items}</ol></pre>"


def code_mirror(lines: Sequence[str]) -> str:
    rows = "".join(
        "<div style='position: relative;'><div class='CodeMirror-gutter-wrapper'><div class='CodeMirror-linenumber"
        f" CodeMirror-gutter-elt' style='left: 0px'>{n + 1}</div></div><pre class=' CodeMirror-line '"
        f" role='presentation'><span role='presentation'>{tokens(line, CODE_MIRROR) or '&#8203;'}</span></pre></div>"
        for n, line in enumerate(lines)
    )
    return f"<div class='CodeMirror cm-s-default'><div class='CodeMirror-code' role='presentation'>{rows}</div></div>"


def code_mirror_6(lines: Sequence[str]) -> str:
    numbers = "".join(f"<div class='cm-gutterElement'>{n + 1}</div>" for n in range(len(lines)))
    rows = "".join(f"<div class='cm-line'>{tokens(line, ['ͼb', 'ͼe']) or '<br>'}</div>" for line in lines)
    return (
        "<div class='cm-editor'><div class='cm-scroller'><div class='cm-gutters' aria-hidden='true'>"
        f"<div class='cm-gutter cm-lineNumbers'>{numbers}</div></div><div class='cm-content' role='textbox'>{rows}"
        "</div></div></div>"
    )


def syntax_highlighter(lines: Sequence[str]) -> str:
    numbers = "".join(
        f"<div class='line number{n + 1} index{n} alt{2 - n % 2}'>{n + 1}</div>" for n in range(len(lines))
    )
    form = "<code class='python {}'>{}</code>"
    rows = "".join(
        f"<div class='line number{n + 1} index{n} alt{2 - n % 2}'>"
        + (
            f"<code class='python spaces'>{'&nbsp;' * (len(line) - len(line.lstrip()))}</code>"
            if line[:1] == " "
            else ""
        )
        + (tokens(line.lstrip(" "), ["keyword", "plain", "comments"], form) or "&nbsp;")
        + "</div>"
        for n, line in enumerate(lines)
    )
    return (
        "<div><div id='highlighter_1' class='syntaxhighlighter python'><table border='0'><tbody><tr>"
        f"<td class='gutter'>{numbers}</td><td class='code'><div class='container'>{rows}</div></td></tr></tbody>"
        "</table></div></div>"
    )


HIGHLIGHTERS: dict[str, Callable[[Sequence[str]], str]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(highlight_js, highlight_js_numbered, prism, pygments, pygments_table, pygments_inline, sphinx, rouge),
        *(rouge_table, shiki, chroma, chroma_table, github, github_blob, prettify, prettify_numbered),
        *(code_mirror, code_mirror_6, syntax_highlighter),
    )
}

TEX = r"E_{k}=\frac{1}{2}mv^2"
PARTS = "<mi>E</mi><mi>k</mi><mo>=</mo><mfrac><mn>1</mn><mn>2</mn></mfrac><mi>m</mi><msup><mi>v</mi><mn>2</mn></msup>"
NOTE = f"<annotation encoding='application/x-tex'>{TEX}</annotation>"
NOTE += "<annotation encoding='MathML-Content'>twice</annotation>"
MATHML = f"<math><semantics><mrow>{PARTS}</mrow>{NOTE}</semantics></math>"
STATED = f"<math alttext='{TEX}'>{PARTS}</math>"
GLYPHS = "<span class='mord'>E</span><span class='msupsub'>k</span><span class='mrel'>=</span>½mv2"
FORMULAS = {
    "MathML": MATHML,
    "MathML with its text": STATED,
    "KaTeX": f"<span class='katex'><span class='katex-mathml'>{MATHML}</span>"
    f"<span class='katex-html' aria-hidden='true'>{GLYPHS}</span></span>",
    "KaTeX of HTML and TeX": f"<span class='katex'><span class='katex-mathml'>{MATHML}</span></span>",
    "KaTeX displayed": f"<span class='katex-display'><span class='katex'><span class='katex-mathml'>{MATHML}</span>"
    f"<span class='katex-html' aria-hidden='true'>{GLYPHS}</span></span></span>",
    "MathJax 2": f"<span class='MathJax_Preview'></span><span class='MathJax' id='MathJax-Element-1-Frame' "
    f"tabindex='0'><nobr aria-hidden='true'><span class='math'>{GLYPHS}</span></nobr><span class='MJX_Assistive_MathML'"
    f" role='presentation'><math>{PARTS}</math></span></span>"
    f"<script type='math/tex' id='MathJax-Element-1'>{TEX}</script>",
    "MathJax 2 with a preview": f"<span class='MathJax_Preview'>{GLYPHS}</span><span class='MathJax'><nobr "
    f"aria-hidden='true'>{GLYPHS}</nobr></span><script type='math/tex'>{TEX}</script>",
    "MathJax 2 in SVG": f"<span class='MathJax_SVG' data-mathml=\"{STATED}\"><nobr aria-hidden='true'>{GLYPHS}"
    "</nobr></span>",
    "MathJax 2 in CommonHTML": f"<span class='mjx-chtml MathJax_CHTML'><span class='mjx-math'>{GLYPHS}</span></span>"
    f"<script type='math/tex'>{TEX}</script>",
    "MathJax 2 of MathML": f"<script type='math/mml'>{STATED}</script>",
    "MathJax 3": f"<mjx-container class='MathJax CtxtMenu_Attached_0' jax='CHTML'><mjx-math aria-hidden='true'>{GLYPHS}"
    f"</mjx-math><mjx-assistive-mml unselectable='on'>{MATHML}</mjx-assistive-mml></mjx-container>",
    "MathJax 4 in HTML": f"<mjx-container><mjx-math data-latex='{TEX}'><mjx-mi data-latex='E'>E</mjx-mi></mjx-math>"
    f"<mjx-assistive-mml><math>{PARTS}</math></mjx-assistive-mml></mjx-container>",
    "MathJax 4": f"<mjx-container class='MathJax' jax='SVG'><svg data-latex='{TEX}'><text>{GLYPHS}</text></svg>"
    "</mjx-container>",
    "MediaWiki": f"<span class='mwe-math-element'><span class='mwe-math-mathml-inline mwe-math-mathml-a11y' "
    f"style='display: none;'>{MATHML}</span><img src='x.svg' class='mwe-math-fallback-image-inline' "
    f"aria-hidden='true' alt='{TEX}'></span>",
    "MediaWiki in parts": f"<span style='display: none'>{STATED}</span>"
    f"<img class='mwe-math-fallback-image-inline' alt='{TEX}'>",
    "image of a formula": f"<img class='formulaInl' alt='{TEX}'>",
    "image of CodeCogs": f"<img src='https://latex.codecogs.com/svg.image?{quote(TEX)}'>",
    "image of mathTeX": f"<img src='/cgi-bin/mathtex.cgi?{TEX}' alt='formula'>",
    "MediaWiki of old": f"<img class='tex' alt='{TEX}' src='x.png'>",
    "kramdown": f"<script type='math/tex'>{TEX}</script>",
    "kramdown displayed": f"<script type='math/tex; mode=display'>% <![CDATA[\n{TEX} %]]></script>",
}
