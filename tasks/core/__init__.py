"""Infrastructure that all steps share: the step contract, runners, worker pool, storage, input files."""
