"""Filter by a model of the user's own votes (`gpt2train data label`)."""

from pydantic import Field

from gpt2train.quality.model_file import cached_model, from_bytes
from gpt2train.settings import Settings
from tasks.clean.filters.registry import FilterFile, TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection, too_few


class QualitySettings(Settings):
    """Filter by a quality model."""

    model: str | None = None
    """File or URL of a model that `gpt2train data label` or `gpt2train data train-quality` wrote; turns the filter
    on."""
    threshold: float | None = Field(None, ge=0, le=1)
    """Minimum probability that a text is good; by default the one that was chosen with the model."""

    @property
    def enabled(self) -> bool:
        """True if there is a model."""
        return self.model is not None


def quality(text: str, settings: QualitySettings, content: bytes) -> Rejection | None:
    """Rejection of a text that is probably not good; reason: `quality_low`."""
    model = cached_model(content)
    least = model.threshold if settings.threshold is None else settings.threshold
    return too_few("quality_low", model.score(text), least)


register_filter("quality", TextFilter(QualitySettings, quality, order=550, file=FilterFile("model", from_bytes)))
