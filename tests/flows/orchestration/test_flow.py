"""Settings flows: the form that Prefect makes of the settings, the merging of parameters, refused values."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema as prefect_schema

import deployments
from flows.dataprep import Dataprep, dataprep
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.orchestration.flow import (
    FIRST,
    NOT_GIVEN,
    SettingsFlow,
    run_name,
    settings_flow,
    settings_schema,
    split_parameters,
)
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.settings import EvaluateFlowSettings, PretrainSettings, deployment_names, resolve
from gpt2train.config import preset
from gpt2train.data.tokenizer import save_tokenizer
from gpt2train.errors import UserError
from tests.gpt2train.data.test_tokenizer import small_tables

# Pytest undoes the filter that flows/orchestration/flow.py sets.
pytestmark = pytest.mark.filterwarnings("ignore:Default value not given is not JSON serializable")
FLOWS = [dataprep, pretrain, finetune, evaluate, pipeline]
FILE = Path(deployments.__file__).with_name("prefect.yaml")
ENTRIES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["deployments"]


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nodes(inner)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return prefect_schema(pretrain).model_dump_for_openapi()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_setting_is_a_parameter_without_a_default(flow: SettingsFlow[Any]) -> None:
    """A default that a form fills in would count as given, and win over the preset; so would a switch's `false`."""
    schema = prefect_schema(flow).model_dump_for_openapi()
    shown = list(schema["properties"])
    assert shown[0] == "config" and sorted(shown[1:]) == sorted(flow.model.model_fields)
    # Sources, output, preset and settings of the training are on the first screen of the form.
    main = [name for name in FIRST if name in flow.model.model_fields]
    assert shown[1 : len(main) + 1] == main and main
    assert [node for node in nodes(schema) if "default" in node or node.get("type") == "boolean"] == []
    required = [name for name, field in flow.model.model_fields.items() if field.is_required()]
    assert schema.get("required", []) == required
    assert [name for name, shown in schema["properties"].items() if not shown["description"]] == []


def test_the_form_shows_bounds_choices_help_and_defaults(schema: dict[str, Any]) -> None:
    assert schema["properties"]["runner"]["enum"] == ["local", "ray", "dask"]
    assert "345m" in schema["properties"]["preset"]["enum"]
    model = schema["properties"]["train"]["properties"]["model"]["properties"]
    assert model["layers"]["minimum"] == 1
    assert model["heads"]["description"].endswith(". Default, unless preset or config sets it: 12.")
    assert settings_schema(EvaluateFlowSettings)["required"] == ["run"]
    # The defaults in the help texts can be typed as they are shown, lists too.
    shown = [node["description"] for node in nodes(schema) if "Default, unless" in node.get("description", "")]
    lists = [text for one in shown if (text := one.rpartition("sets it: ")[2].removesuffix("."))[:1] in "[{"]
    assert len(shown) > 100 and len(lists) > 3 and all(isinstance(json.loads(one), list | dict) for one in lists)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": "pretrain/345m", "data": None, "train": {"steps": 3}, "verify": True}, None),
        ({"train": {"stepz": 3}}, "'stepz' was unexpected"),
        ({"train": {"model": {"layers": 0}}}, "0 is less than the minimum of 1"),
        ({"preset": "354m"}, "'354m' is not one of"),
        ({"verify": "perhaps"}, "'perhaps' is not one of"),
        ({"workers": "two"}, "'two' is not of type"),
    ],
)
def test_the_api_refuses_wrong_parameters(schema: dict[str, Any], given: dict[str, Any], said: str | None) -> None:
    found = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(given)]
    assert bool(found) == (said is not None) and all(str(said) in message for message in found)


def test_a_run_changes_one_value_of_its_deployment() -> None:
    parameters = {"config": "pretrain/345m", "train": {"steps": 1000}, "output": "out/x"}
    config, given = split_parameters(PretrainSettings, parameters)
    settings = resolve(PretrainSettings, config, given)
    assert (settings.train.steps, settings.output) == (1000, "out/x")
    assert settings.train.model.layers == preset("345m")["model"]["layers"]
    assert (settings.launch.processes, settings.train.parallel.zero) == (8, 1)
    # A form may send null for a field that was touched and emptied: it counts only where a setting may be None.
    given = {"data": None, "workers": None, "train": {"steps": None, "checkpoints": {"init_from": None}}}
    assert split_parameters(PretrainSettings, given)[1] == {"data": None, "train": {"checkpoints": {"init_from": None}}}


def test_a_run_shows_only_the_given_parameters_and_the_first_of_many_files() -> None:
    """Prefect's server refuses a run whose parameters are larger than 524,288 bytes."""
    given = {"output": Path("out"), "urls": ("a.txt",), "clean": NOT_GIVEN, "workers": 2, "config": None}
    shown = dataprep.serialize_parameters(given)
    assert shown == {"output": "out", "urls": ["a.txt"], "workers": 2, "config": None}
    names = [f"/data/{'folder/' * 20}{number:05}.txt" for number in range(6_000)]
    shown = dataprep.serialize_parameters({"documents": names, "clean": {"language": {"keep": ["en"]}}})
    assert shown == {"documents": [*names[:20], "… and 5,980 more"], "clean": {"language": {"keep": ["en"]}}}
    assert dataprep.serialize_parameters({"documents": names[:1_000]}) == {"documents": names[:1_000]}


def test_every_deployment_has_valid_settings_and_a_flow(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, *small_tables())
    (tmp_path / "task.toml").write_text('kind = "text"\n[data]\ntrain = "texts"\n')
    needed = {
        "evaluate": {"run": "out/runs/x"},
        "finetune": {"model": "tiny", "tokenizer": str(tmp_path), "task": str(tmp_path / "task.toml")},
    }
    names = []
    for entry in ENTRIES:
        flow = load_flow_from_entrypoint(entry["entrypoint"])
        assert isinstance(flow, SettingsFlow)
        names.append(f"{flow.name}/{entry['name']}")
        assert entry["parameters"] == {"config": names[-1]}
        assert entry["description"] and flow.name in entry["tags"]
        resolve(flow.model, names[-1], needed.get(flow.name, {}))
    assert sorted(names) == deployment_names()
    assert {f"pretrain/{size}" for size in ("tiny", "117m", "345m", "762m", "1542m")} <= set(names)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": {"stepz": 3}}, "unknown setting 'train.stepz'; did you mean 'train.steps'?"),
        ({"output": "nowhere"}, "nowhere/tokens holds no finished step"),
        ({"config": "pretrain/354m"}, "the settings of a deployment; did you mean 'pretrain/345m'?"),
    ],
)
def test_a_user_error_ends_a_run_with_its_one_line(given: dict[str, Any], said: str) -> None:
    run = FlowRun.model_construct(deployment_id="00000000-0000-0000-0000-000000000001")
    with FlowRunContext.model_construct(flow_run=run):  # as in a run of a deployment
        state = pretrain.fn(**{"config": "pretrain/tiny", **given})
    assert state.is_failed() and said in state.message and "\n" not in state.message


def test_a_call_with_an_unknown_setting_is_answered_in_one_line() -> None:
    with pytest.raises(
        UserError, match=r"^.*'dataprep': got an unexpected keyword argument 'outptu'; .* --help-all .*$"
    ):
        dataprep(outptu="x")


def test_a_flow_with_other_options_of_prefect_stays_what_it_is() -> None:
    nightly = dataprep.with_options(name="nightly", retries=1)
    assert (nightly.name, nightly.retries, nightly.planned) == ("nightly", 1, Dataprep)
    stored = nightly.serialize_parameters({"urls": ["https://user:secret@host/list"], "workers": NOT_GIVEN})
    assert list(stored) == ["urls"] and "secret" not in str(stored)
    with pytest.raises(UserError, match=r"'dataprep': got an unexpected .* -m flows\.dataprep --help-all"):
        nightly(outptu="x")
    with (  # Prefect retries what is raised; `final_state` would leave the run in AwaitingRetry
        FlowRunContext.model_construct(flow=nightly, flow_run=None),
        pytest.raises(UserError, match="no-such"),
    ):
        nightly.fn(config="no-such.toml")


def layout(processes: int, **parallel: int) -> dict[str, Any]:
    return {"launch": {"processes": processes}, "train": {"parallel": parallel}}


@pytest.mark.parametrize(
    ("flow", "given", "name"),
    [
        (dataprep, {}, "dataprep-demo-out"),
        (dataprep, {"warcs": ["a"], "urls": ["https://u:pw@h/l"]}, "dataprep-urls-warcs-out"),
        (pretrain, {"launch": {"processes": 1}}, "pretrain-tiny-dp1-out"),
        (pretrain, {"preset": "345m", "output": "s3://b/short/", **layout(8, tp=2)}, "pretrain-345m-tp2-dp4-short"),
        (pipeline, {"documents": ["a"], **layout(4, pp=2)}, "pipeline-documents-tiny-pp2-dp2-out"),
        (evaluate, {"run": "out/runs/tiny-0123abcd"}, "evaluate-tiny-0123abcd"),
    ],
)
def test_the_name_of_a_run_shows_its_subject(flow: SettingsFlow[Any], given: dict[str, Any], name: str) -> None:
    assert run_name(flow.planned(resolve(flow.model, flags=given))) == name


def test_a_flow_is_created_without_a_warning() -> None:
    """Also where another program, as `prefect deploy`, has filters of its own for warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = settings_flow(Dataprep)
        assert not any("default" in field for field in prefect_schema(made).properties.values())


@pytest.mark.slow
def test_a_flow_can_be_sent_to_the_workers_of_a_cluster() -> None:
    """Ray and Dask pickle it with the context of its run; in a command its class belongs to `__main__`."""
    code = (
        "import pickle, runpy, cloudpickle, flows.command; commands = []; flows.command.command = commands.append; "
        "runpy.run_module('flows.dataprep', run_name='__main__'); "
        "assert commands[0].planned.__module__ == '__main__'; "
        "print(pickle.loads(cloudpickle.dumps(commands[0])).planned.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "flows.dataprep\n", done.stderr[-2000:]
