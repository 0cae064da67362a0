"""Run a job by its launcher, as a flow does: `python -m tests.tasks.train.launch.submit_job CONFIG JSON`."""

import logging
import signal
import sys

from gpt2train.command_line import fail
from gpt2train.errors import RunError, UserError
from tasks.train.launch.job import Job
from tasks.train.launch.launchers import LaunchSettings, run_job


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    config, settings = sys.argv[1:]
    try:
        run_job(Job(config, LaunchSettings.model_validate_json(settings)))
    except (UserError, RunError) as error:
        return fail(str(error), 2 if isinstance(error, UserError) else 1, debug=False)
    except KeyboardInterrupt:
        return fail("interrupted", 130, debug=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
