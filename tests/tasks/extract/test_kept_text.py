"""Text that a reader sees is text of the page, whatever the markup around it is called."""

import pytest

from tests.tasks.extract.made_pages import PARAGRAPH, WORDS, article, text_of

PLAIN = (WORDS * 3).strip()


def between(inside: str, head: str = "") -> str:
    """Text of an article between its first and its last paragraph."""
    found = text_of(article(inside).replace("<body>", f"<body>{head}", 1))
    assert found.startswith(PLAIN) and found.endswith(PLAIN), found
    return found[len(PLAIN) : -len(PLAIN)].strip("\n")


@pytest.mark.parametrize("tag", ["a", "b", "cite", "em", "font", "i", "label", "small", "span", "strong", "time"])
@pytest.mark.parametrize("name", ["tooltip", "meta-org", "author", "caption", "options", "print", "promo", "buttons"])
def test_words_of_a_sentence_are_kept_in_any_inline_element(tag: str, name: str) -> None:
    marked = f"<{tag} class='{name}'>Verizon</{tag}>"
    assert between(f"<p>The sale to {marked}</p>") == "The sale to Verizon"
    assert between(f"<p>{marked} is <b>{marked}</b>.</p>") == "Verizon is Verizon."
    assert between(f"<ul><li>first {marked}</li><li>second</li></ul>") == "- first Verizon\n- second"
    assert between(f"<p>{marked}</p><p>{marked} | {marked}</p>") == ""  # a line of its own


@pytest.mark.parametrize("name", ["anchor anchorTargetHideOnScrollNavbar_qJOx", "slider__title", "nav-heading"])
@pytest.mark.parametrize("kind", ["article", "documentation"])
def test_a_heading_is_that_of_the_text_below_it_whatever_its_class_is(name: str, kind: str) -> None:
    """The first class is that of all headings of Docusaurus, which have a link to themselves."""
    sign = "<a href='#b' class='hash-link' title='Direct link'>\u200b</a>"
    head = "<meta name='generator' content='Docusaurus v3'>" if kind == "documentation" else ""
    inside = (
        "<div class='related'><h2 class='{0}'>The end</h2></div><h2 class='{0}' id='b'>The boat{1}</h2><p>It sank.</p>"
    )
    assert "The boat\nIt sank." in between(inside.format(name, sign), head)
    assert "The end" not in between(inside.format(name, sign))
    for other in ("<div class='related'><a href='/c'>Boats</a></div>", "<nav><a href='/c'>Boats</a></nav>"):
        assert between(f"<h2 class='{name}'>The boat</h2>{other}") == ""


@pytest.mark.parametrize(
    "question",
    [
        "<div class='btn collapsed'><div>How long?</div></div>",
        "<div class='accordion-controls'><button aria-controls='a'><span>How long?</span></button></div>",
        "<div class='button-group'><button><span>01/</span><h3>How long?</h3></button></div>",
        "<h4><a class='btn btn-link' role='button' href='#a' aria-expanded='true'>How long?</a></h4>",
    ],
)
def test_a_question_above_its_answer_is_text_whatever_it_is_called(question: str) -> None:
    assert between(f"{question}<div id='a'><p>{WORDS}</p></div>").endswith(f"How long?\n{WORDS.strip()}")
    alone = between(f"{question}<div class='related'><a href='/c'>Boats</a></div>")
    assert "How" not in alone or question.startswith("<h4>")


@pytest.mark.parametrize("tag", ["div", "li", "section"])
def test_a_part_whose_id_is_its_first_words_is_named_after_them(tag: str) -> None:
    line = "Have the right tools handy."
    assert between(f"<{tag} id='have-the-right-tools-handy'>{line}</{tag}>").endswith(line)
    assert between(f"<{tag} id='tools'>{line}</{tag}>") == ""
    assert between(f"<{tag} id='related-articles-of-ours'><p>Related articles of ours.</p></{tag}>") == ""


@pytest.mark.parametrize(
    ("inside", "kept"), [("<pre>x = 1</pre>", 1), ("<table><tr><td>1<td>2</table>", 1), ("<img>", 0)]
)
def test_the_caption_of_code_or_a_table_is_text(inside: str, kept: int) -> None:
    caption = "<figcaption><span>Listing 9-3</span>: Opening a file</figcaption>"
    assert between(f"<figure>{caption}{inside}</figure>").count("Listing 9-3: Opening a file") == kept


def test_headings_that_are_links_are_those_of_the_texts_below_them() -> None:
    parts = [f"<div><h3><a href='/{name}'>{name}</a></h3></div><p>{name}: {WORDS}</p>" for name in ("Ada", "Bob", "Cy")]
    assert between("".join(parts)) == "\n".join(f"{one}\n{one}: {WORDS.strip()}" for one in ("Ada", "Bob", "Cy"))
    assert between(parts[0]) == f"Ada: {WORDS.strip()}"  # one alone may be that of another page


@pytest.mark.parametrize("tag", ["p", "div", "div class='body-paragraph'"])
def test_a_sentence_of_which_most_words_are_a_link_is_text(tag: str) -> None:
    line = "The husband of the queen has <a href='/b'>spent three weeks in hospital and has had an operation.</a>"
    assert between(f"<{tag}>{line}</{tag.split()[0]}>").startswith("The husband of the queen has spent three weeks")


def test_paragraphs_that_are_not_read_aloud_are_text() -> None:
    """Of a site that hides the rest of a page from screen readers until a visitor pays; a hidden one is not shown."""
    paragraph = f"<p class='paywall' aria-hidden='true'>{WORDS}</p>"
    assert between(paragraph) == WORDS.strip()
    assert between(paragraph.replace("<p", "<p style='display:none'")) == ""
    assert between(f"<div aria-hidden='true'>{paragraph}</div>") == ""


@pytest.mark.parametrize("name", ["hidden-xs", "hidden md:block", "md:flex print:hidden", "Mx(a)--modalCentered Cf"])
def test_parts_that_other_screens_do_not_show_are_read(name: str) -> None:
    assert between(f"<div class='{name}'><p>Take the <a href='/b'>boat</a></p></div>") == "Take the boat"


@pytest.mark.parametrize(
    "name",
    [
        "overflow-hidden",
        "overflow-x-hidden",
        "hide-comments",
        "not-sr-only",
        "show-menu",
        "w-embed",
        "views-field views-field-field-related-laws",
    ],
)
def test_names_of_what_is_done_to_a_part_mark_nothing(name: str) -> None:
    assert between(f"<div class='relative {name}'><p>Take the <a href='/b'>boat</a></p></div>") == "Take the boat"


@pytest.mark.parametrize(
    ("names", "times"), [(("teaser", "slider-wrap", "tools"), 5), (("widget", "newsletter-view", "subscribers"), 12)]
)
def test_a_long_text_is_kept_whatever_the_class_around_it_is(names: tuple[str, ...], times: int) -> None:
    part = f"<img src='a'><p>{WORDS}</p><h3>On</h3><p><a href='/b'>Go</a> on</p>"
    for name in names:
        assert between(f"<div class='{name}'>{part * times}</div>{PARAGRAPH * 20}").count("On\nGo on") == times
        assert "On" not in between(f"<div class='{name}'>{part * (times // 3)}</div>{PARAGRAPH * 20}")
        links = f"<p><a href='/b'>{WORDS}</a> {WORDS}</p>" * times
        assert "quick" not in between(f"<div class='{name}'>{links}</div>").replace(PLAIN, "")


def test_a_paragraph_of_sentences_is_kept_whatever_its_class_is_though_it_has_a_link() -> None:
    line = f"{WORDS}See <a href='/b'>the fox</a> at night."
    for name in ("caption", "tooltip", "promo", "options"):
        assert between(f"<p class='{name}'>{line}</p>") == f"{WORDS}See the fox at night."
        assert between(f"<p class='{name}'><a href='/b'>{WORDS}</a> of it.</p>") == ""  # most of it is a link
        card = "<template><h4>Foxes</h4><p>Of the wood.</p></template>"  # that a script shows above the words
        assert between(f"<p>Look at <span class='{name}'><b>the fox</b>{card}</span>.</p>") == "Look at the fox."


def test_sentences_before_a_list_with_a_note_and_below_a_picture_are_prose_in_any_container() -> None:
    for end in (":", ".₁", ".[2]", ".)", ". 3"):
        line = f"{WORDS}So it was{end}"
        assert between(f"<div class='teaser'><p>{line}</p></div>") == line
    assert between(f"<img src='a'><div class='teaser'><p>{WORDS}</p></div>") == ""
    assert between(f"<img src='a'><div class='teaser'>{PARAGRAPH}</div>") == PLAIN


@pytest.mark.parametrize("tag", ["div", "p", "h3"])
def test_titles_that_are_links_stay_with_the_words_about_them_in_a_list(tag: str) -> None:
    items = "".join(f"<li><{tag}><a href='/{n}'>Foxes {n}</a></{tag}><p>{WORDS}</p></li>" for n in range(3))
    assert [line.lstrip("- ") for line in between(f"<ul>{items}</ul>").split("\n")[::2]] == [
        "Foxes 0",
        "Foxes 1",
        "Foxes 2",
    ]


def test_signs_of_editing_and_text_for_screen_readers_are_no_words_of_a_sentence() -> None:
    for name in ("sr-only", "visually-hidden", "mw-editsection", "headerlink", "hidden"):
        assert between(f"<h2>The river<span class='{name}'> aside</span></h2><p>{WORDS}</p>").startswith("The river\n")


def test_words_that_are_shown_are_read_once_though_programs_do_not_read_them_aloud() -> None:
    for shown, expected in (
        ("<span aria-hidden='true'>T</span>he fox costs 5 coins.", "The fox costs 5 coins."),
        ("<span class='sr-only'>The</span><span aria-hidden='true'>The</span> fox.", "The fox."),
        (
            "The fox costs <s>5</s> <span>$4.50</span><span aria-hidden='true'>$<i>4.50</i></span>.",
            "The fox costs 5 $4.50.",
        ),
        ("Go <i class='material-icons' aria-hidden='true'>home</i> <span aria-hidden='true'>→</span>now.", "Go now."),
        ("Go <span aria-hidden='true' style='display:none'>far</span>now.", "Go now."),
    ):
        assert between(f"<p>{shown}</p>") == expected


@pytest.mark.parametrize("style", ["display:block", "color: red; DISPLAY : grid;", "display:flex!important"])
def test_words_that_are_displayed_on_lines_of_their_own_are_not_joined(style: str) -> None:
    for tag in ("span", "b", "a href='/b'", "code", "my-line"):
        line = f"<{tag} style='{style}'>{{}}</{tag.partition(' ')[0]}>"
        lines = f"{line.format('Go')}{line.format('on')}"
        assert between(f"<p>Stay: {lines}here, fox.</p>") == "Stay: Go on here, fox."
        assert between(f"<pre>{line.format('if x:')}{line.format('  y()')}</pre>") == "if x:\n  y()"
        inline = lines.replace(style, "display:inline-block")
        assert between(f"<p>Stay: {inline}here, fox.</p>") == "Stay: Goonhere, fox."


@pytest.mark.parametrize("name", ["hljs-meta", "token author", "cm-tags", "pl-ads", "hll print"])
def test_code_keeps_the_words_of_any_class(name: str) -> None:
    code = f"<pre><code><span class='{name}'>#include</span> &lt;a&gt;\n<i class='linenos'>2</i>\tx = 1</code></pre>"
    assert between(code) == "#include <a>\n\tx = 1"
    assert between(code.replace("class='linenos'", "id='addHidden'")) == "#include <a>\n2\tx = 1"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("<div class='alert alert-warning' role='alert'>Close the valve.</div>", "Close the valve."),
        ("<div role='complementary' class='note'>Close the valve.</div>", "Close the valve."),
        ("<h2 class='x'><button type='button'>How long?</button></h2><p>Two days.</p>", "How long?\nTwo days."),
        ("<details><summary><button>How long?</button></summary>Two days.</details>", "How long?\nTwo days."),
        ("<dl><dt><button>How long?</button></dt><dd>Two days.</dd></dl>", "How long?\nTwo days."),
        (f"<button aria-controls='a'>How long?</button><div id='a' hidden>{PARAGRAPH}</div>", f"How long?\n{PLAIN}"),
        (f"<button class='accordion'>How long?</button><div class='panel'>{PARAGRAPH}</div>", f"How long?\n{PLAIN}"),
        ("<button>How long?</button><p>Two days.</p>", "How long?\nTwo days."),
        ("<button><h3>How long</h3></button><p>Two days.</p>", "How long\nTwo days."),
        (f"<figure><img src='a'><blockquote>{WORDS}</blockquote></figure>", WORDS.strip()),
        ("<p>Press <button>Save</button> twice.</p>", "Press Save twice."),
        ("<p>It gives <output>60</output> at last.</p>", "It gives 60 at last."),
        ("<p>Take the fox home.</p><button>Copy</button><p>Then rest.</p>", "Take the fox home.\nThen rest."),
        ("<button aria-expanded='false' aria-controls='m'>Menu</button><ul id='m'><li><a href='/'>Home</a></ul>", ""),
    ],
)
def test_parts_that_are_controls_or_notes_are_read(inside: str, expected: str) -> None:
    assert between(inside) == expected


@pytest.mark.parametrize(
    "question",
    [
        "<div class='heading'><h4><a data-toggle='collapse' href='#a'>How long?</a></h4></div>",
        "<div role='button' aria-controls='a'><i class='icon'></i><a href=''>How long?</a></div>",
        "<p><a href='javascript:void(0)' aria-expanded='false'>How long?</a></p>",
    ],
)
def test_a_link_that_opens_a_text_is_a_question(question: str) -> None:
    """Of Bootstrap 3 and Elementor."""
    assert between(f"{question}<div id='a'><p>{WORDS}</p></div>") == f"How long?\n{WORDS.strip()}"
    assert between(f"{question}<ul id='a'><li><a href='/b'>{WORDS}</a></li></ul>") == ""


@pytest.mark.parametrize("hidden", ["hidden", "style='display:none'", "aria-hidden='true'"])
@pytest.mark.parametrize("tag", ["section", "div class='slide'"])
def test_slides_of_which_one_is_shown_are_read(tag: str, hidden: str) -> None:
    end = f"><p>{WORDS}</p></{tag.split()[0]}>"
    slides = [f"<{tag}{end}", f"<{tag} {hidden}{end}", f"<{tag} {hidden}{end}"]
    assert between("".join(slides)).count(WORDS.strip()) == 3
    assert between("".join(f"<div>{one}</div>" for one in slides)).count(WORDS.strip()) == 3
    assert between(f"<p>{WORDS}</p><div {hidden}><p>{WORDS}</p></div>") == WORDS.strip()


@pytest.mark.parametrize("closed", ["hidden", "style='display:none'"])
def test_hidden_text_is_read_unless_it_is_words_for_search_engines_or_said_again(closed: str) -> None:
    page = f"<html><body><h1>A</h1>{{}}<div {closed}>{{}}</div></body></html>"
    own = "".join(f"<p>{number} {WORDS * 3}</p>" for number in range(9))
    words = f"<p>{'cheap boats online rowing ' * 400}</p>"
    assert text_of(page.format(PARAGRAPH, own)).count("fox") == 3 + 27
    for hidden in (words, own, f"<textarea>{own}</textarea><pre>{own.replace('<', '&lt;')}</pre>"):
        assert text_of(page.format(own, hidden)).count("fox") == 27 and "cheap" not in text_of(page.format(own, hidden))
    assert "rowing" in text_of(page.format("<p>Boats.</p>", words))


@pytest.mark.parametrize("closed", ["hidden", "style='display:none'", "aria-hidden='true'", "hidden='until-found'"])
@pytest.mark.parametrize(
    ("panel", "control"),
    [
        ("role='tabpanel'", ""),
        ("class='tab-pane fade'", ""),
        ("class='accordion-collapse collapse'", ""),
        ("class='panel' id='b'", ""),
        ("id='b2'", "<a href='#b2'>Windows</a>"),
        ("id='b2'", "<button aria-controls='b1 b2'>Windows</button>"),
        ("id='b2'", "<span data-bs-target='#b2'>Windows</span>"),
    ],
)
def test_parts_that_are_closed_at_first_are_read(panel: str, control: str, closed: str) -> None:
    inside = f"<div><div id='b1'><p>Run it as root.</p></div><div {panel} {closed}><p>Run it as admin.</p></div></div>"
    assert between(inside, control) == "Run it as root.\nRun it as admin."
    assert "admin" not in between(inside.replace(panel, "class='x'"), control) or "until" in closed


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("<dialog open><p>Take the boat.</p></dialog>", "Take the boat."),
        ("<dialog><p>Take the boat.</p></dialog>", ""),
        ("<p>Take <noindex>the</noindex> boat.</p><noindex><p>Then rest.</p></noindex>", "Take the boat.\nThen rest."),
        (f"<svg><foreignObject><div>{PARAGRAPH}</div></foreignObject><text>x</text></svg>", PLAIN),
        ("<svg><foreignObject><span>Start</span></foreignObject></svg>", ""),
        (f"<menu><li>{WORDS}</li></menu>", f"- {WORDS.strip()}"),
        ("<menu><li><a href='/'>Home</a></li></menu>", ""),
        (f"<figure><blockquote><p>{WORDS}</p></blockquote></figure>", WORDS.strip()),
        ("<figure class='wp-block-table'><table><tr><td>a</td><td>b</td></tr></table></figure>", "a | b"),
        (f"<figure><img src='a'><p>{WORDS}</p></figure>", ""),
        ("<figure><p>Row.</p><figure><img src='a'>A boat</figure><p>Rest.</p></figure>", "Row.\nRest."),
        (f"<aside><p>{WORDS.replace('fox', 'hare')}</p></aside>", WORDS.replace("fox", "hare").strip()),
        (f"<div role='complementary'><p>{WORDS}</p></div>", WORDS.strip()),
        (f"<aside><h3>More</h3><a href='/b'>{WORDS}</a></aside>", ""),
        (f"<aside class='newsletter'><p>{WORDS}</p></aside>", ""),
        ("<div id='likes'><div class='likes-text'><span>%d</span> bloggers like this:</div></div>", ""),
        ("<aside epub:type='footnote'><p>1 A boat.</p></aside><aside role='doc-tip'>Row.</aside>", "1 A boat.\nRow."),
        (f"<form><input>{f'<p>{WORDS}</p>' * 3}</form>", "\n".join([WORDS.strip()] * 3)),
        (f"<form><p>{WORDS}</p><p>{WORDS}</p><input></form>", ""),
    ],
)
def test_elements_of_a_tag_that_is_often_boilerplate_are_read_if_they_hold_a_text(inside: str, expected: str) -> None:
    assert between(inside) == expected


@pytest.mark.parametrize("name", ["modal-body", "modal-content", "popup", "site-overlay", "share-price"])
def test_sentences_in_a_container_of_the_name_of_an_overlay_are_a_part_of_the_text(name: str) -> None:
    assert between(f"<div class='{name}'><h3>The boat</h3><p>{WORDS}</p></div>") == f"The boat\n{WORDS.strip()}"
    assert between(f"<div class='{name}'><p>{WORDS}</p><button>Close</button></div>") == ""


@pytest.mark.parametrize("tag", ["article", "section", "div class='content'", "div class='post-body'"])
def test_a_text_of_which_some_paragraphs_are_in_containers_is_read_from_its_first_to_its_last_one(tag: str) -> None:
    boxed = f"<{tag}>{PARAGRAPH}</{tag.split()[0]}>"
    for text in (f"{PARAGRAPH * 2}{boxed}" * 3 + PARAGRAPH * 2, f"{PARAGRAPH}{boxed}{PARAGRAPH}"):
        for page in (f"<html><body>{text}</body></html>", f"<html><body><div>{text}</div></body></html>"):
            assert text_of(page) == "\n".join([PLAIN] * text.count("<p>"))
    page = f"<html><body>{''.join(f'<h2>Part {n}</h2>{boxed}' for n in 'abc')}</body></html>"
    assert text_of(page) == "\n".join(f"Part {n}\n{PLAIN}" for n in "abc")


COMMENT = (
    f"<div class='comment'><div class='comment-author'>Anna</div><div class='comment-body'><p>{WORDS}</p></div></div>"
)


@pytest.mark.parametrize("around", ["{}", "<div id='comments'>{}</div>", "<div class='comments'><div>{}</div></div>"])
@pytest.mark.parametrize("menu", ["<a href='/a'>News</a>", "<p>News <a href='/a'>of it all</a> and the rest</p>" * 20])
@pytest.mark.parametrize("head", ["", "<h1>Guests</h1><p>Welcome.</p>", f"<h1>How?</h1><div>{WORDS}</div>"])
def test_a_list_of_comments_is_the_text_of_a_page_without_an_article(around: str, head: str, menu: str) -> None:
    """Of guest books, and of questions with their answers."""
    page = f"<html><body><div class='menu'>{menu}</div>{head}{around.format(COMMENT * 9)}</body></html>"
    found = text_of(page)
    assert found.count(WORDS.strip()) == page.count(WORDS) and "News" not in found
    below = page.replace(head, f"<h1>A</h1><div class='comments-open'>{PARAGRAPH}</div>") if head else ""
    assert "Anna" not in text_of(below) and text_of(below).count("fox") == 3 * bool(head)
    wrapped = f"<html><body><div class='comments'><h1>A</h1>{PARAGRAPH}{around.format(COMMENT * 9)}</div></body></html>"
    assert text_of(wrapped) == f"A\n{PLAIN}"


def test_sentences_under_the_name_of_a_sites_prose_are_the_text_of_a_page_without_another() -> None:
    boxes = "".join(f"<div class='widget'><h2>Boat {number}</h2><p>{WORDS}</p></div>" for number in range(4))
    page = f"<html><body><h1>River</h1><div>{boxes}{{}}</div></body></html>"
    assert text_of(page.format("")).count(WORDS.strip()) == 4
    assert text_of(page.format(f"<p>{WORDS * 8}</p>")).count(WORDS.strip()) == 8
    consent = f"<div class='cookie-bar'><p>{WORDS * 3}</p><button>Accept</button></div>"
    assert text_of(f"<html><body><h1>River</h1>{consent}</body></html>") == "River"


def test_the_text_of_a_page_of_frames_is_read() -> None:
    """libxml2 leaves the source of it."""
    for inside in (PARAGRAPH, f"<body bgcolor='white'>{PARAGRAPH}</body>"):
        frames = f"<frameset cols='20%,80%'><frame src='a.html'><noframes>{inside}</noframes></frameset>"
        assert text_of(f"<html><head><title>A</title></head>{frames}</html>") == PLAIN


def test_dialogs_stay_closed() -> None:
    dialog = "<div id='b' role='dialog' style='display:none'><p>Log in to read.</p></div>"
    assert between(f"{dialog}<p>Read on.</p>", "<a data-toggle='modal' href='#b'>Log in</a>") == "Read on."


@pytest.mark.parametrize(
    "control", ["<a href=\"javascript:toggle('b')\">+/-</a>", "<b onclick='toggle(\"b\")'>+/-</b>", "<a id='c'>+/-</a>"]
)
def test_text_that_a_script_opens_is_read(control: str) -> None:
    """Of cbflib's dictionary: the description of each item is closed at first."""
    assert between(f"<div><a>Vote</a></div><div>{PARAGRAPH}</div>") == PLAIN
    panel = "<div id='b' style='display:none'>{}</div>"
    assert between(f"<p>{control} Axes</p>{panel.format(PARAGRAPH)}") == f"+/- Axes\n{PLAIN}"
    for inside in ("<p>Copied.</p>", f"<form><input name='name'>{PARAGRAPH}</form>", f"<a href='/b'>{PLAIN}</a>"):
        assert between(f"<p>{control} Axes</p>{panel.format(inside)}") == "+/- Axes"


def test_rows_of_a_table_that_unfolds_are_read() -> None:
    """Of Doxygen's tree of classes: the rows below the first level are folded at first."""
    rows = "<tr><td><i {}>+</i>Slot</td></tr><tr style='display:none'><td>Slot1 of a signal</td></tr>"
    assert between(f"<table>{rows.format('onclick=fold(1)')}</table>") == "+Slot\nSlot1 of a signal"
    assert between(f"<table>{rows.format('')}</table>") == "+Slot"


def test_an_id_in_a_series_of_names_marks_nothing() -> None:
    """Of YUIDoc, where the id has the name of a property (`allowAdHocAttrs`)."""
    series = "".join(
        f"<div class='item' id='property_{name}'><p>{name} is set.</p></div>" for name in ("adHoc", "share")
    )
    assert between(series) == "adHoc is set.\nshare is set."
    assert between(series.replace("class='item'", "class='item own'", 1)) == "adHoc is set.\nshare is set."
    assert between(series.replace("property_", "")) == ""
    assert between(series.replace("'item'", "'share'")) == ""


def test_code_in_a_read_only_area_and_in_a_form_is_read() -> None:
    """Of SyntaxHighlighter 1, which makes code of areas, and of editors' examples, which are forms."""
    code = "interface Shell\n{\n    Commands all();\n}"
    assert between(f"<div><textarea readonly='readonly'>{code}</textarea></div>") == code
    assert between(f"<form><textarea>{code}</textarea><textarea readonly>one line to copy</textarea></form>") == ""
    assert between(f"<form><p>Call it:</p><pre>{code}</pre></form>") == f"Call it:\n{code}"


@pytest.mark.parametrize("closed", ["hidden", "style='display: none'"])
def test_alternatives_of_which_a_script_shows_one_are_read(closed: str) -> None:
    """Of LibreOffice's help, which shows the words for the reader's system."""
    keys = f"<span><span {closed} id='m'>Command</span><span {closed} id='d'>Ctrl</span></span>"
    assert between(f"<p>Press {keys}+Enter.</p>") == "Press Command Ctrl+Enter."
    for between_them in ("<!-- x -->", "<script>f()</script>", "<template>Alt</template>", " \n"):
        parted = keys.replace("</span><span", f"</span>{between_them}<span")
        assert between(f"<p>Press {parted}+Enter.</p>") == "Press Command Ctrl+Enter."
    for shown in ("<span>Shift</span>", "Shift"):
        assert between(f"<p>Press {keys.replace('</span></span>', f'</span>{shown}</span>')}.</p>") == "Press Shift."


def test_the_text_in_a_head_inside_the_body_is_read() -> None:
    """Of pages with two heads, or without a body, the last head of which is never closed."""
    page = (
        f"<html><head><title>A</title></head><body><center><head><title>A</title>{PARAGRAPH}<p>End.</p></body></html>"
    )
    assert text_of(page) == f"{PLAIN}\nEnd."
    assert text_of(f"<head><title>A</title><td>{PARAGRAPH}<p>End.") == f"{PLAIN}\nEnd."


@pytest.mark.parametrize(
    "end", ["</body>", "</html>", "</BODY></HTML>", "</body></html><html><head><title>b</title></head><body>"]
)
def test_the_text_after_the_end_of_a_page_is_read(end: str) -> None:
    """Of pages that are put together of others."""
    assert between(f"<p>Take the boat.</p>{end}<p>Then rest.</p>") == "Take the boat.\nThen rest."


def test_a_link_that_is_never_closed_is_no_link() -> None:
    assert between(f"<a href='/x'>{PARAGRAPH * 8}") == "\n".join([PLAIN] * 8)


def test_a_text_after_a_heading_of_links_that_each_section_has_is_read() -> None:
    links, section = "<h4>See also</h4><p><a href='b.html'>a boat</a></p>", "<h3>close</h3><p>It closes a window.</p>"
    page = f"<body><article>{PARAGRAPH * 20}{links}{section}{{}}</article>"
    assert text_of(page.format(links)).split("\n")[20:22] == ["close", "It closes a window."]
    assert "window" not in text_of(page.format(""))  # an announcement of another page


def test_a_compound_is_no_label() -> None:
    """Of an index, in which several commands have the same option."""
    items = "".join(f"<li>--{name}-empty</li>" for name in ("print", "share", "tags") for _ in range(3))
    assert between(f"<ul>{items}</ul>").count("-empty") == 9


def test_the_alternative_text_of_an_image_is_a_formula_if_it_has_commands_of_tex() -> None:
    image = "<p>Take <img src='a.svg' alt='{}'> then.</p>"
    assert between(image.format(r"\frac{1}{2} \leq x_{1}")) == r"Take \frac{1}{2} \leq x_{1} then."
    assert between(image.format(r"C:\frac\users_1")) == "Take then."
    assert between(image.format("$E=mc^2$")) == "Take $E=mc^2$ then."
    assert between(image.format("E=mc^2").replace("src", "class='latex' src")) == "Take E=mc^2 then."


@pytest.mark.parametrize("tag", ["ul", "ol"])
def test_a_list_of_descriptions_is_read_whatever_its_class_is(tag: str) -> None:
    """Of Valadoc, whose lists of classes have the class `navi_inline`."""
    items = [f"<li><a href='/{name}'>{name}</a> - {WORDS}</li>" for name in ("Persona", "Store")]
    assert between(f"<{tag} class='navi'>{''.join(items)}</{tag}>").count(WORDS.strip()) == 2
    assert between(f"<{tag} class='navi'>{''.join(items).replace('.', '')}</{tag}>") == ""
    assert between(f"<{tag} class='author'>{''.join(items)}</{tag}>") == ""


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("10<sup>6</sup> cells", "10^6 cells"),
        ("6.02×10<sup><b>23</b></sup>", "6.02×10^23"),
        ("10<sup>−9</sup> m, 5 m<sup>2</sup>", "10^−9 m, 5 m2"),
        ("2<sup>n</sup> and (a+b)<sup>2</sup>", "2^n and (a+b)^2"),
        ("x<sup>2</sup>+y<sup>2</sup>", "x^2+y^2"),
        ("1010<sub>2</sub> H<sub>2</sub>O CO<sub>2</sub>", "1010_2 H2O CO2"),
        ("3<sup>1</sup>⁄<sub>2</sub> cups", "3 1⁄2 cups"),
        ("the 1<sup>st</sup>, n<sup>o</sup> 3, M<sup>me</sup>", "the 1st, no 3, Mme"),
        ("a note<sup>1</sup>, of 1999<sup>[2]</sup>", "a note1, of 1999[2]"),
        ("<img alt='$E=mc^2$'> and <img class='latex' alt='E=mc^2'>", "$E=mc^2$ and E=mc^2"),
        ("<math><msup><mn>10</mn><mn>6</mn></msup></math>", "10^6"),
        ("<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "1/2"),
        ("<math><msup><mi>x</mi><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msup></math>", "x^(n+1)"),
        ("<math><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>", "x_i^2"),
        ("<math><msup> <mi>x</mi> <mn>2</mn> </msup></math>", "x 2"),
    ],
)
def test_numbers_are_not_changed_by_superscripts(markup: str, expected: str) -> None:
    assert between(f"<p>{markup} are found.</p>") == f"{expected} are found."
    if "math" not in markup and "img" not in markup:
        assert between(f"<pre>{markup} are found.</pre>") == f"{expected} are found."


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("He said <q>so</q>.", 'He said "so".'),
        ("<q>A <q class='inner'>b</q> c</q>, all", '"A "b" c", all'),
        ("a “<q>word</q>” or <q>«mot»</q>", "a “word” or «mot»"),
        ("none <q> </q>here", "none here"),
    ],
)
def test_quotations_have_the_marks_that_a_browser_shows(markup: str, expected: str) -> None:
    assert between(f"<p>{markup}</p>") == expected


@pytest.mark.parametrize("tag", ["noscript", "template shadowrootmode='open'", "template shadowroot=open"])
def test_text_without_a_script_is_read_if_there_is_no_other(tag: str) -> None:
    name = tag.split()[0]
    page = f"<html><body><x-app>{{}}</x-app><{tag}><article>{PARAGRAPH}</article></{name}></body></html>"
    assert text_of(page.format("")) == PLAIN
    assert text_of(page.format(PARAGRAPH.replace("fox", "wolf"))) == PLAIN.replace("fox", "wolf")
    assert text_of("<html><body><p>Hi</p><noscript>Enable JavaScript.</noscript></body></html>") == "Hi"


def test_anchors_without_an_end_and_pages_of_few_words_are_text() -> None:
    assert text_of(f"<html><body><a name='top'>{PARAGRAPH}{PARAGRAPH}</body></html>").count("fox") == 6
    assert text_of("<html><body><h1>Case 1</h1><h1>Case 2</h1></body></html>") == "Case 1\nCase 2"
    assert text_of("<html><body><p><a href='/a'>abc</a></p><p>def</p></body></html>") == "abc\ndef"


def test_a_stated_article_body_is_the_text_though_more_stands_beside_it() -> None:
    live = "".join(f"<div class='live'>{PARAGRAPH.replace('fox', 'wolf')}</div>" for _ in range(7))
    page = f"<html><body><div itemprop='articleBody'>{PARAGRAPH * 3}</div><div>{live}</div></body></html>"
    assert "wolf" not in text_of(page) and text_of(page).count("fox") == 9


def test_verses_with_annotations_are_read() -> None:
    """Of Genius, where lines of a song are links to notes; a list of pages with such a break in one is not verses."""
    lines = [f"I walked along the shore for {number} days" for number in range(8)]
    held = [lines[0], "<br>".join(lines[1:4]), lines[4], "<br>\n".join(lines[5:8])]
    for wrapped in ("<p>{}</p>", "<div>{}</div>"):
        verses = "<br>\n".join(f"<a href='/{one[:3]}'>{one}</a><br>[Chorus]" for one in held)
        read = between(wrapped.format(verses))
        assert [one for one in read.split("\n") if one != "[Chorus]"] == lines
        pages = "<br>".join(f"<a href='/{one[:3]}'>{one}<br></a>" for one in lines)
        assert between(wrapped.format(pages)) == ""
