"""Main flow: URLs, archives or texts -> tokens -> checkpoints -> merged and scored model -> report.

Run it with `python -m flows.pipeline`; without any source it runs the embedded demo.
"""

from flows import dataprep
from flows.command import command
from flows.dataprep import prepare
from flows.dry_run.plan import plan_page
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import run_context
from flows.pretrain import check_local, check_training, train_on_tokens
from flows.recipe import PlannedRun
from flows.scores import ScoreInputs, check_data, merge_and_score
from flows.settings import PipelineSettings
from flows.ui.result import show_result
from gpt2train.store.manifest import Manifest
from tasks.core.runner import Runner
from tasks.passport.write import leave_passport, run_names
from tasks.report.step import REPORT, report


def check(run: PlannedRun[PipelineSettings]) -> None:
    """Check inputs, output, parallel layout and this machine's resources before the flow starts.

    Raises:
        UserError: an input is missing, the output cannot be written, the batch does not divide over the processes, or
            this machine lacks resources for the run.
    """
    settings = run.settings
    check_local(settings.output)
    dataprep.check(run)
    check_data(settings)
    check_training(run)


def recipe(run: PlannedRun[PipelineSettings], runner: Runner) -> list[Manifest]:
    """Run all steps of the flow. Returns their manifests; that of the report is the last."""
    root, settings = run.root, run.settings
    data = prepare(root, settings, run.sources, runner)
    training = train_on_tokens(root, root, data.tokenize, data.tokenizer, settings, runner)
    inputs = ScoreInputs(root, data.tokenizer, data.shuffle, data.lambada)
    model, scores = merge_and_score(root, training, inputs, settings, runner)
    manifests = [*data.manifests, training, model, scores]
    return [*manifests, runner.run_step(report, root, manifests, settings.report)]


@settings_flow("pipeline", PipelineSettings, recipe, check)
def pipeline(run: PlannedRun[PipelineSettings]) -> str:
    """Prepare data, train, merge, score and report. Returns the path of the report."""
    with run_context(run.settings, plan=lambda: plan_page(run)) as (root, runner):
        manifests = recipe(run, runner)
        show_result(runner.publisher, root, manifests)
        leave_passport(root, run_names(manifests))
        return (root / manifests[-1].folder).path(REPORT)


if __name__ == "__main__":
    command(pipeline, "report")
