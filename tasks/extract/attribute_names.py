"""Tags, roles, and words of classes and ids, by which parts of a page are known (`attribute_rules` applies them)."""

import re

from tasks.extract.blocks import HEADINGS

# Tags without text of the page: scripts, controls, media.
_DROPPED_TAGS = """
applet area audio base button canvas col colgroup datalist dialog embed fencedframe figcaption footer frame
frameset head iframe input link map menu menuitem meta meter nav noframes noscript object optgroup
option output param picture progress rp rt rtc script select source style svg template textarea title track use
video
"""
DROPPED_TAGS = frozenset(_DROPPED_TAGS.split())
# Containers that a class can mark as boilerplate.
_MARKED_TAGS = """
a aside blockquote center dd details div dl dt fieldset figure form h1 h2 h3 h4 h5 h6 header hgroup label
legend li ol p section small span strong summary table tbody td time tr ul address cite i b em font
"""
MARKED_TAGS = frozenset(_MARKED_TAGS.split())
CONTAINERS = frozenset(
    ["article", "aside", "center", "div", "fieldset", "form", "main", "section", "table", "tbody", "td"]
)

# In these patterns, `\b` of a class is the start or end of a word between separators: see `words`.
HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
OWN_LINES = re.compile(r"display\s*:\s*(?:block|flex|grid|list-item|table|table-row)(?![\w-])", re.IGNORECASE)
BOILERPLATE = r"""
      breadcrumb|bread\ crumb|sidebar|side\ bar|cookie|newsletter|outbrain|taboola|criteo|sociable
    | disclaimer|subscri(?:be|ption)|signup|sign\ up|login|byline|timestamp|pagination
    | advert|sponsor|popup|copyright|colophon|masthead|permalink|headerlink
    | backlink|noprint|taglist | \Bfooter\b
    | \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|side|mobile|sticky)?(?:nav|navi|navbar|navbox|navigation|menu|
        menus|submenu|topnav)
    | (?:site|page|global|main|top|blog)\ (?:header|head|footer|foot)
    | pageheader | pagefooter | siteheader | sitefooter | topbar | toolbar | statusbar
    | foot | footer\w* | footnav | docnav | navheader
    | (?:social|share|shares|sharing|sharebar|shariff|sharedaddy|addthis\w*|addtoany\w*|addtocart)\w*
    | related\w* | recommend\w* | likes\ text
    | (?:most|more)\ (?:popular|read|viewed|recent|shared|stories|on|from|in|news|articles)
    | popular\ (?:posts|articles|stories) | recent\ (?:posts|comments|articles) | latest\ (?:news|posts|articles)
    | read\ (?:more|next|also) | also\ (?:read|like) | up\ next | next\ (?:up|post|article)
    | prev(?:ious)?\ (?:post|next|page) | next\ page
    | post\ (?:meta|nav|navigation|info|tags|footer|date|author) | entry\ (?:meta|footer|utility|info|tags|date)
    | article\ (?:meta|info|infos|tags|footer|tools|date|actions|related) | postmeta | postmetadata
    | (?:posted|written)\ (?:on|by|in) | tag\ (?:list|links|cloud) | tagcloud
    | ad | ads | adv | adsense\w* | adbox | adunit | adsbygoogle | google\ ad\w*
    | ad\ (?:slot|unit|container|wrapper|\d+)
    | dfp\w* | viral | syndication | consent | gdpr | modal
    | user\ (?:info|profile) | message\ container | factbox | infobox\ (?:ad|promo) | skip\ (?:link|nav|to)\w*
    | skiplink
    | search\ ?(?:box|form|bar|wrapper) | searchformwrapper | invisible | nodisplay | sr\ only
    | (?:hidden|hide)(?!\ (?:xs|sm|md|lg|xl|on|for|from|print|phone|tablet|mobile|small)\b)
    | screen\ reader\ text | visually\ ?hidden | a11y\ only | print\ only | printfooter | catlinks | editsection
    | mw\ editsection | mw\ jump\w*
    | jump\ to\ nav | linenos? | lnt | lineno | linenumbers? | line\ numbers? | rouge\ gutter | copy\ button
    | copybtn | clipboard
    | language\ (?:switcher|list|selector|picker) | lang\ (?:switcher|list|selector|toggle|picker) | toplang
    | bottomlang
    | report\ ?bug | feedback\w* | donat(?:e|ion)\w* | prevnext | prev\ next | pager | paging | buttons? | btn
    | rss | print | printer | controls | akismet | nocomments | comments?\ (?:title|form|respond)
    | respond | reply | replies\ link | nav\ (?:header|footer|table|panel|links?) | book\ navigation | subpages
    | contentsub | sitesub
    | powered\ by | credits? | store\ link | attachment | viewport
    )\b
    """
# Components of a page that are beside an article, and the text of a page without one.
COMPONENTS = r"""
    | promo|banner|teaser|caption|tooltip
    | \b(?:
      meta | metadata | search | author\w* | rating\w* | widget\w* | tags | embed | embedded | overlay | slideshow
    | carousel | slider | tools | actions | expand | options
    )\b
    """
# The same for documentation and forums, whose classes name parts of the text (`sidebar`, `meta`, `caption`, `author`).
NAVIGATION = r"""
      breadcrumb|bread\ crumb|newsletter|headerlink|backlink|permalink|skip\ link|copybtn|searchform
    | \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|mobile)?(?:nav|navi|navbar|navigation|menu|submenu|topnav)
    | cookie\ ?(?:banner|notice|consent|bar|popup|law|policy)\w*
    | (?:site|global|main|top|blog)\ (?:header|head|footer|foot|title) | page\ (?:footer|foot)
    | pagefooter | siteheader | sitefooter | topbar | toolbar | footer | navheader | navfooter
    | docnav | footnav
    | nav\ (?:header|footer|table|panel|list|links?) | book\ navigation | prev\ next | prevnext | pager
    | (?:prev|previous|next)\ page | navset(?:top|bottom) | tocset | versionbox | chlink\w*
    | pagination | paging
    | search\ ?(?:box|bar)? | sr\ only | hidden(?!\ (?:xs|sm|md|lg|xl|on|for|from|print|phone|tablet|mobile|small)\b)
    | visually\ ?hidden | screen\ reader\ text | printfooter | catlinks
    | editsection | mw\ editsection | mw\ jump\w* | subpages | content\ ?sub | site\ ?sub | t\ navbar
    | linenos? | lnt | lineno | linenumbers? | line\ numbers? | gutter | copy\ button | clipboard | viewcode\ back
    | link\ seesrc | ocn | mbrsel
    | language\ (?:switcher|list|selector|picker) | lang\ (?:switcher|list|selector|toggle|picker) | toplang
    | bottomlang
    | report\ ?bug | edit\ (?:page|this\ page|on\ github) | sphinxsidebar\w*
    | sidebar\ (?:nav\w*|wrapper|container|menu|tree|toc)
    | share | sharing | social\ (?:buttons|links|share) | ads? | advert\w*
    )\b
    """
# Words of parts of a forum around its posts.
FORUM_PARTS = (
    NAVIGATION
    + r"""
    | \b(?:
      signature\w* | avatar | post\ ?profile | user\ ?(?:info|profile|details|card|pic|extras|title)\w*
    | author | post\ ?(?:author|head|foot|date|edit|info|taglist|signature|meta) | poster
    | message\ user(?!\ content) | message\ attribution
    | (?:author|member)\ (?:statistics|info) | crawler\ post\ meta | topic\ category | tags
    | (?:action|button|tool|moderator|status|quick)\ ?(?:bar|buttons|list|controls)
    | (?:topic|thread)\ (?:tools|modes|info)
    | jump\ ?box | online\ list | stat\ block | page\ ?(?:links|section)s? | nav\ ?links | next\ ?links
    | navigate\ section | popup\ ?(?:menu|body|group|ctrl) | top\ ?links | similar\ threads | last\ ?edited
    | bb\ ?code\ ?(?:block\ title|postedby) | expand\ ?link | quote\ controls | struct\ item | share\ buttons
    | comment\ (?:user|date|score|actions) | bottom\ notice | post\ ?(?:menu|form)
    | post\ (?:buttons|controls|actions|menu)
    | sponsor\w* | similar\ topics | suggested\ topics | related\ (?:topics|questions) | quick\ ?reply
    | topic\ actions
    | vote\ ?(?:box|count|cell|button)\w* | votes | likes? | reactions? | userbar | forum\ ?(?:jump|nav)\w*
    )\b
    """
)
# Elements that hold the text of one post, in the templates of forums.
POSTS = re.compile(
    r"^(?:post ?body|post ?message(?: \d+)?|post ?content restore|post ?content|post ?text|post ?msg|bb wrapper"
    r"|message (?:body|content|text|user ?content)|msg \d+|pid \d+|cooked|comment (?:copy|body|text)|commtext|comm text"
    r"|bbp (?:reply|topic) content|ips comment content|ips type rich ?text|forum post content|reply content"
    r"|entry content)\b"
    r"|\b(?:s prose|js post body|post_?body)\b"
)
TOC = re.compile(
    r"\b(?:toc|table\ of\ contents|tableofcontents|minitoc|quickview|contents\ (?:list|topic)|toctree\ wrapper"
    r"|on\ this\ page)\b"
)
COMMENTS = re.compile(
    r"^(?:comments?|commentlist|commentary\ list|comol|disqus\w*|dsq|respond|user\ comments|reader\ comments)\b"
    r"|\b(?:comments?\ (?:list|area|section|wrapper|container|content|block|body|page|box|thread)|commentlist"
    r"|comments|disqus\ thread|(?:article|post|reader|user|facebook|fb)\ comments?)\b"
)
# In documentation, a comment may be that of the code which the page describes.
READER_COMMENTS = re.compile(r"\b(?:comments|commentlist|commentary\ list|comol|disqus\w*|dsq|respond)\b")
COMMENT_PARTS = ("comm", "comol", "disqus", "dsq", "respond")  # one of them is in every name that COMMENTS matches
TOC_PARTS = ("toc", "content", "quickview", "this page")
NOTES = re.compile(  # an aside of these is a part of the text
    r"\b(?:admonition|note|notes|warning|caution|important|tip|hint|footnote|footnotes|topic|callout|seealso|example)\b"
)

HIDES = re.compile(r"\b(?:hidden|hide)(?!\ (?:xs|sm|md|lg|xl|on|for|from|print|phone|tablet|mobile|small)\b)\b")
# Signs of editing and text that no reader sees: they are no words of a sentence or of code. All other names of
# boilerplate are those of containers, and say nothing of words in the middle of a line.
UNSEEN = re.compile(
    r"""
      headerlink | skip\ ?link | copybtn
    | \b(?:
      sr\ only | screen\ reader\ text | visually\ ?hidden | a11y\ only | print\ only | nodisplay | invisible
    | (?:hidden|hide)(?!\ (?:xs|sm|md|lg|xl|on|for|from|print|phone|tablet|mobile|small)\b)
    | editsection | mw\ jump\w* | skip\ (?:nav|to)\w* | jump\ to\ nav | linenos? | lnt | lineno | linenumbers?
    | line\ numbers? | gutter | copy\ button | clipboard | viewcode\ back | link\ seesrc | ocn | mbrsel
    )\b
    """,
    re.VERBOSE,
)
# Boilerplate that is prose: about the site, its authors and its other pages. A container of another name that holds
# whole sentences alone, with few words in links, without a control or a picture, is a part of the text.
SITE_PROSE = re.compile(
    r"""
      cookie|newsletter|subscri|sign\ ?up|login|sponsor|advert|copyright|colophon|masthead|sidebar|side\ bar
    | \B(?:footer|foot)\b | \b(?:foot|footer\w*|consent|gdpr|widget\w*|author\w*|related\w*|recommend\w*
    | popular|recent|latest|rss|social|addtoany\w*|donat\w*|login|respond|reply|replies|ads?|adv|akismet
    | message\ container|comments?|powered)\b
    """,
    re.VERBOSE,
)
# Links to the heading or the note beside them, which are words of a sentence in other elements than a link.
MARK_LINKS = re.compile("permalink|backlink")
# Parts of tabs and accordions, which are closed at first.
PANEL = re.compile(r"\b(?:tab\ ?pane|tab\ ?panel|tab\ content|collaps(?:e|ed|ible)|accordion|panel)\b")
# A request for consent, which is the longest text of a page without an article.
CONSENT = re.compile(
    r"\b(?:onetrust|ot (?:sdk|pc)|consent|gdpr|didomi|usercentrics|truste|cookiebot|qc cmp|evidon"
    r"|cookie ?(?:banner|notice|consent|bar|popup|law|modal|message|settings|preferences)s?)\b"
)
# A part that a page shows over another one.
DIALOG = re.compile(r"\b(?:modal|overlay|popup|lightbox|dialog)\b")
# Attributes of a button that opens and closes a part of the text.
TOGGLE = re.compile(r"\b(?:accordion|collaps(?:e|ed|ible)|expander|faq|question|toggler?|trigger)\b")

# Likely main content, the strongest first.
LEVELS = (
    re.compile(
        r"\b(?:post|article|story|entry|news|page|text|blog|single|body|art)\ ?"
        r"(?:body|text|content|entry|copy|bodytext)\b"
        r"|\barticle\ (?:content|body)\ \w+|\bpost\ inner\ wrapper\b|\bbody\ ?text\b|\bfulltext\b"
        r"|\barticle\ container\b"
    ),
    re.compile(
        r"^(?:article|story|entry|post|text|cell|postarea)$"
        r"|\b(?:(?:theme|section)\ content|single\ post|main\ column|field\ body|column\ text)\b"
    ),
    re.compile(
        r"\b(?:content|maincontent|main\ content|contentmain|content\ ?main|content\ body|contentbody|bodycontent"
        r"|mw\ content\ text|page\ content)\b|^content"
    ),
    re.compile(r"^main|\bmain\b|^primary\b"),
)
# What each name has that they match; most names of elements have none of these.
LEVEL_PARTS = re.compile("article|body|cell|column|content|copy|entry|inner|main|post|primary|story|text")
OTHER_ROLES = frozenset(["navigation", "banner", "contentinfo", "search", "menu", "menubar", "dialog", "alertdialog"])

# Parts of a recipe: its lists are beside the prose on which they depend, and their items may be links to shops.
RECIPE = re.compile(
    r"\b(?:recip|rezept|recet|ricett|ingredi|zutat)\w*+(?! (?:comment|review|rating|kommentar|bewertung))"
)
RECIPE_PARTS = ("recip", "rezept", "recet", "ricett", "ingredi", "zutat")  # which one of its words begins with
INGREDIENTS = re.compile(r"\b(?:ingredi|zutat)\w*")

# Elements whose ids are names of what stands in them: of words and headings on all pages, of parts of documentation.
WORDS = HEADINGS | {"a", "b", "cite", "code", "em", "font", "i", "label", "small", "span", "strong", "time"}
NAMED_TAGS = frozenset(["dd", "details", "dl", "dt", "li", "p", "section", "td", "tr"])
SECTION = re.compile(
    r"\b(?:(?:sub)*section|sect\d|chapter|appendix|refentry|refsect\d|method|function|member|detail)\b"
)
