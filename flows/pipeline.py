"""Main flow: URLs, archives or texts -> tokens -> checkpoints -> merged and scored model -> report.

Run it with `python -m flows.pipeline`; without any source it runs the embedded demo.
"""

from flows.command import command
from flows.dataprep import Dataprep, prepare
from flows.orchestration.flow import settings_flow
from flows.pretrain import Training, check_local, train_on_tokens
from flows.scores import ScoreInputs, check_data, merge_and_score
from flows.settings import PipelineSettings
from flows.token_source import OwnTokens
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.result import show_result
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.runner import Runner
from tasks.outputs.passport.write import leave_passport, run_names
from tasks.report.step import REPORT, report


class Pipeline(Dataprep, Training[PipelineSettings]):
    """Prepare data, train, merge, score and report. Returns the path of the report."""

    name, model, result_name = "pipeline", PipelineSettings, "report"
    settings: PipelineSettings

    @property
    def tokens(self) -> OwnTokens:
        """Tokens that this flow makes."""
        return OwnTokens(self.settings)

    def check(self) -> None:
        check_local(self.settings.output)
        super().check()
        check_data(self.settings)
        self.check_training()

    def recipe(self, runner: Runner) -> list[Manifest]:  # type: ignore[override]
        root, settings = self.root, self.settings
        data = prepare(root, settings, self.sources, runner)
        training = train_on_tokens(root, root, data.tokenize, data.tokenizer, settings, runner)
        inputs = ScoreInputs(root, data.tokenizer, data.shuffle, data.lambada)
        model, scores = merge_and_score(root, training, inputs, settings, runner)
        manifests = [*data.manifests, training, model, scores]
        return [*manifests, runner.run_step(report, root, manifests, settings.report)]

    def conclude(self, made: list[Manifest], publisher: ArtifactPublisher) -> str:  # type: ignore[override]
        show_result(publisher, self.root, made)
        leave_passport(self.root, run_names(made))
        return (self.root / made[-1].folder).path(REPORT)

    def is_trained(self, folder: Folder | None) -> bool:
        return super().is_trained(folder) and dict(self.cached_steps())["train"] is not None


pipeline = settings_flow(Pipeline)

if __name__ == "__main__":
    command(pipeline)
