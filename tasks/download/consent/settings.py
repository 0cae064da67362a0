"""Settings of the consent signals."""

from typing import Literal

from gpt2train.settings import Settings

SignalName = Literal["robots_ai_agent", "noai", "noimageai", "tdm_reservation", "content_signal"]
AI_AGENTS = (
    *("GPTBot", "CCBot", "Google-Extended", "ClaudeBot", "anthropic-ai", "Claude-Web", "Bytespider"),
    *("Applebot-Extended", "Meta-ExternalAgent", "FacebookBot", "Amazonbot", "PerplexityBot", "cohere-ai"),
    *("cohere-training-data-crawler", "AI2Bot", "Diffbot", "omgili"),
)


class ConsentSettings(Settings):
    """Settings of the consent signals: which are looked for, and which of them drop a page."""

    enabled: bool = True
    """Look for the signals and record them in the ledger. Off: nothing but robots.txt for the crawler's own name."""
    honour: tuple[SignalName, ...] = ("robots_ai_agent", "noai", "noimageai", "tdm_reservation", "content_signal")
    """Signals that drop a page, with the signal as reason code (docs/data/consent.md). The others are recorded."""
    agents: tuple[str, ...] = AI_AGENTS
    """Names of crawlers for training data. A rule of robots.txt for one of them counts as one for this crawler, unless
    the file names this crawler too; so do directives of X-Robots-Tag and meta tags for one of them."""
