"""Parts of Prefect that it does not document as stable, all of them.

Tested with Prefect 3.8.8; `pyproject.toml` admits 3.6 to 3.8. For a new release run
`tests/flows/compat/test_prefect.py`, which compares each part with Prefect's own way. Every entry says what would break
it.

This module imports Prefect (1-3 s). `flows/orchestration/server.py`, which runs before Prefect is needed, imports it
inside functions.
"""

import contextlib
import os
import queue
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import Any, Self
from uuid import UUID

import httpx
from prefect import Flow, flow_engine
from prefect import context as prefect_context
from prefect.assets import Asset, AssetProperties
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State, StateType
from prefect.context import (
    AssetContext,
    FlowRunContext,
    SettingsContext,
    get_settings_context,
    refresh_global_settings_context,
)
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.exceptions import PrefectException
from prefect.logging.handlers import APILogWorker
from prefect.results import get_default_result_serializer, get_default_result_storage, resolve_serializer
from prefect.settings import get_current_settings
from prefect.utilities.callables import ParameterSchema, parameter_schema
from pydantic_core import to_jsonable_python

from gpt2train.errors import RunError, UserError

# Environment variable of a process that a worker started for one flow run: the id of the run.
# Breaks when: workers hand the id on in another way. Then no run watches its worker.
FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"
TEMPORARY_SERVER_SECONDS = 60  # of pauses alone, with which Prefect counts the time of the start


def refresh_settings(heartbeats: bool = True) -> None:
    """Make Prefect read its settings from the environment again, after it was imported.

    Without heartbeats, which are for automations of a server that outlives its runs, a run ends up to a second earlier:
    Prefect waits for their thread.

    Breaks when: Prefect keeps its settings elsewhere than in the settings context.
    """
    refresh_global_settings_context()
    if not heartbeats:
        get_current_settings().flows.heartbeat_frequency = None


class ParametersFlow(Flow[..., str]):
    """Flow that gets its parameters as they are given, and stores them in a form of its own.

    Breaks when: the engine validates or serializes parameters by other methods.
    """

    @property
    def parameters(self) -> ParameterSchema:
        """Schema of the parameters, which a deployment needs, and a run does not."""
        return parameter_schema(self.fn)

    @parameters.setter
    def parameters(self, schema: ParameterSchema) -> None:
        """Ignore the schema that Prefect makes when the flow is created."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters unchanged; the function of the flow validates them."""
        return parameters

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters as JSON values for the run page and the database.

        Prefect's own implementation imports FastAPI, which costs 0.1 s at start-up.
        """
        plain: dict[str, Any] = to_jsonable_python(parameters, fallback=str)
        return plain

    def with_options(self, **options: Any) -> Self:
        """Return a flow with other options, of the same class: Prefect makes one of its own.

        That one showed the passwords in the parameters, and answered a wrong name with the whole signature.
        """
        made = super().with_options(**options)
        made.__class__ = type(self)
        vars(made).update({name: value for name, value in vars(self).items() if name not in vars(made)})
        return made  # type: ignore[return-value]


def set_signature(function: Callable[..., Any], signature: Signature) -> None:
    """Give a function the signature from which Prefect builds the parameters of its flow and their form.

    Breaks when: Prefect reads the parameters from the code object instead of `inspect.signature`.
    """
    function.__signature__ = signature  # type: ignore[attr-defined]


def materialize(key: str, made_from: Sequence[str], name: str, facts: Mapping[str, Any]) -> None:
    """Make the current task run one that materializes an asset from others; Prefect emits the events when it completes.

    Prefect's decorator `materialize` has to know the assets before the task is called. A step knows what it was made
    from when it is done.

    Args:
        key: Key of the asset, a URL.
        made_from: Keys of the assets that it depends on.
        name: Name of the asset for people.
        facts: JSON values, the payload of the event.

    Breaks when: the task engine emits the events of the assets otherwise than from the context at the end of the task.
    """
    context = AssetContext.get()
    if context is None:
        return
    context.downstream_assets.add(Asset(key=key, properties=AssetProperties(name=name)))
    context.direct_asset_dependencies.update(Asset(key=other) for other in made_from)
    context.add_asset_metadata(key, dict(facts))


def is_retried() -> bool:
    """Return True if the current flow has retries, by its options or by `PREFECT_FLOWS_DEFAULT_RETRIES`.

    The engine makes them for an error that is raised; a state that is returned it leaves in `AwaitingRetry`, where only
    a Prefect worker would look.

    Breaks when: the engine reads the number of retries from elsewhere than the flow.
    """
    return bool(getattr(getattr(FlowRunContext.get(), "flow", None), "retries", 0))


def final_state(error: Exception, kind: StateType = StateType.FAILED) -> State[Any]:
    """Return a state that ends a flow with the error's own line as its message.

    A raised error would get a prefix of Prefect's engine.

    Breaks when: the engine does not take over a state that the function of a flow returns.
    """
    return State(type=kind, message=str(error), data=error)


def update_artifact(client: SyncPrefectClient, artifact: UUID, data: Any, description: str) -> None:
    """Replace the content of an artifact without an event.

    `client.update_artifact` sends an event with the data too, and the server keeps every event: a loss curve of 100 kB
    each time.

    Breaks when: the route or the fields of an artifact change.
    """
    update = ArtifactUpdate(data=data, description=description).model_dump(mode="json", exclude_unset=True)
    client.request("PATCH", "/artifacts/{id}", json=update, path_params={"id": artifact})


def flush(seconds: float) -> None:
    """Send the queued log lines and events now, in at most so many seconds each; both services start again later.

    Breaks when: the services get other names, or `drain_all` becomes asynchronous.
    """
    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=seconds, at_exit=False)


def disconnect() -> None:
    """Let Prefect's client of this process fail at the first attempt, and send no log lines and events any more.

    For a server that has ended for good.

    Breaks when: threads or runs have settings of their own. Then each request to the lost server is repeated for a
    minute, and the failed log lines and events are reported on the terminal.
    """
    settings = get_current_settings()
    settings.client.max_retries = 0
    settings.logging.to_api.enabled = False
    EventsWorker.set_client_override(NullEventsClient)
    discard()


def discard() -> None:
    """Drop the queued log lines and events, which nobody takes: Prefect would try each for seconds before it ends.

    Breaks when: the services get other names, or keep their instances and items elsewhere.
    """
    kinds: tuple[Any, ...] = (APILogWorker, EventsWorker)
    for service in [service for kind in kinds for service in list(kind._instances.values())]:  # threads add to them
        with contextlib.suppress(queue.Empty):
            while True:
                service._queue.get_nowait()


@contextlib.contextmanager
def brief_client(seconds: float) -> Iterator[SyncPrefectClient]:
    """Provide a client whose requests fail after so many seconds, where Prefect's own tries for minutes.

    Prefect's `temporary_settings` would read all settings anew for it.

    Breaks when: a client reads the number of retries otherwise than from the settings.
    """
    now = get_settings_context()
    client_settings = now.settings.client.model_copy(update={"max_retries": 0})
    with (
        SettingsContext(profile=now.profile, settings=now.settings.model_copy(update={"client": client_settings})),
        get_client(sync_client=True, httpx_settings={"timeout": seconds}) as client,
    ):
        yield client


def explain_refusal(error: Exception) -> UserError | RunError | None:
    """Return the line for an error of the server by which the engine did not begin a run; None for any other error.

    Breaks when: the client gets other texts or causes. Then the command ends with the text of the client.
    """
    cause = error.__cause__ or error
    status = cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else 0
    address, text = get_current_settings().api.url, f"status {status}" if status else cause
    if status in (401, 403):
        key = "PREFECT_API_AUTH_STRING, or PREFECT_API_KEY of Prefect Cloud"
        return UserError(f"the Prefect server at {address} refuses the key ({text}); set {key}")
    if status >= 500:
        return RunError(f"the Prefect server at {address} fails ({text}); see its log, and run again")
    if str(error).startswith("Failed to reach API"):
        remedy = "set PREFECT_API_URL to the address of its API, which ends with /api"
        return UserError(f"no API of a Prefect server answers at {address} ({text}); {remedy}")
    if str(error).startswith("Found incompatible versions"):
        return UserError(f"the Prefect server at {address} is too old or too new ({text}); install the same release")
    return None


def explain_results() -> UserError | None:
    """Return the line for the user's settings of results, if Prefect can use none of them; None otherwise.

    The engine opens the storage before a run begins, although no flow of this project stores a result.

    Breaks when: the engine opens another storage. Then the command ends with the engine's text.
    """
    try:
        get_default_result_storage()
        resolve_serializer(get_default_result_serializer())
    except (ValueError, PrefectException, ImportError) as error:  # the last two of a block of an integration
        names = "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK or PREFECT_RESULTS_DEFAULT_SERIALIZER"
        return UserError(f"Prefect cannot store results by its settings ({error}); correct or unset {names}")
    return None


def keep_running_without_slot() -> None:
    """Let no flow of this process end because the server has lost the slot of its deployment's concurrency limit.

    The slots are in the memory of the server, which renews them every 225 s: after its restart, or an outage of
    minutes, the engine ended a run of days. The lock of the output keeps a second run out.

    Breaks when: the engine holds the slot by another function, or reads it from elsewhere than its module.
    """
    vars(flow_engine)["maintain_concurrency_lease"] = _hold_slot


_maintain_lease = flow_engine.maintain_concurrency_lease


def _hold_slot(lease: UUID, seconds: float, **_: Any) -> contextlib.AbstractContextManager[None]:
    return _maintain_lease(lease, seconds)


def shield_temporary_server() -> None:
    """Keep Ctrl-C from the temporary server that Prefect starts for a script or a notebook without a server.

    It is in their process group, and was gone before a training had saved: the report of the run's end was repeated for
    four minutes, ended with an error of the client, and the next call found no server. Nor do the 20 s that Prefect
    gives the server suffice on a busy machine, where the first one of a user creates its tables.

    Breaks when: the engine starts the server otherwise than by the first client of its context.
    """
    vars(prefect_context)["get_client"] = _get_client_in_shelter


def _get_client_in_shelter(**settings: Any) -> Any:
    server = get_current_settings().server.ephemeral
    server.startup_timeout_seconds = max(server.startup_timeout_seconds, TEMPORARY_SERVER_SECONDS)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child process inherits it
    try:
        return get_client(**settings)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def started_flow_run() -> str | None:
    """Return the id of the flow run for which a worker started this process; None for a command."""
    return os.environ.get(FLOW_RUN_ID)
