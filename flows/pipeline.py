"""The main job: URLs, archives or texts -> tokens -> checkpoints -> a merged and scored model -> a report.

Run it with `python -m flows.pipeline`; without any source it runs the embedded demo.
"""

from flows import dataprep
from flows.ahead.fit import check_fit
from flows.command import command
from flows.dataprep import prepare
from flows.evaluate import check_wikitext, judge
from flows.offer import offer
from flows.pretrain import check_local, learn
from flows.run.orchestrate import run_step
from flows.settings import PipelineSettings
from flows.show.result import show_result
from flows.workplace import workplace
from gpt2train.parallel.layout import Layout
from tasks.launch import check_launcher
from tasks.report import REPORT, report
from tasks.storage import Folder
from tasks.train import check_corpora


def check(settings: PipelineSettings) -> None:
    """Find before anything starts what would stop the flow later.

    Raises:
        UserError: an input is missing, the output cannot be written, or the batch does not divide.
    """
    check_local(settings.output)
    dataprep.check(settings)
    check_wikitext(settings)
    Layout.of(settings.train, settings.launch.world)
    check_launcher(settings.launch, Folder(settings.output).path())
    check_corpora(settings.train)
    check_fit(settings)


@offer("pipeline", PipelineSettings, check)
def pipeline(settings: PipelineSettings) -> str:
    """From lists of URLs, web archives or texts to an evaluated model. Returns the path of the report."""
    with workplace(settings) as (root, runner):
        data = prepare(root, settings, runner)
        training = learn(root, root, data.tokenize, data.tokenizer, settings, runner)
        model, scores = judge(root, training, data.tokenizer, data.lambada, data.shuffle, settings, runner)
        manifests = [*data.manifests(), training, model, scores]
        page = run_step(report, root, manifests, settings.report, runner=runner)
        show_result(runner.page, root, [*manifests, page])
        return (root / page.folder).path(REPORT)


if __name__ == "__main__":
    command(pipeline, "report")
