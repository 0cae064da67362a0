# The tasks of a contributor; CONTRIBUTING.md explains them. They run in the active virtual environment.
.PHONY: help install install-locked lint format types test unit slow exhaustive docs lock upgrade

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

install:  ## the package, editable, with what lint, types, tests and the documentation need
	pip install -e '.[dev,docs,test]'

install-locked:  ## the same by the pinned versions and hashes of the lock files, without the documentation
	pip install --no-deps --require-hashes -r requirements.lock -r requirements-torch.lock
	pip install --no-deps -e .

lint:  ## ruff: rules and format; retired words
	ruff check .
	ruff format --check .
	python .ci/check_words.py

format:  ## apply what ruff can correct
	ruff check --fix .
	ruff format .

types:  ## mypy on flows, tasks, gpt2train and benchmarks
	mypy

unit:  ## the inner loop
	pytest -m unit

test:  ## all but the slow and the exhaustive tests
	pytest

slow:  ## tests that take minutes each, or the whole machine
	pytest -m slow

exhaustive:  ## more examples of what the slow tests show; FOLDER=tests/tasks: those of a folder
	pytest -m exhaustive $(FOLDER)
	pytest -m unit --hypothesis-profile=many $(FOLDER)

docs:  ## the documentation site, in site/
	mkdocs build --strict

lock:  ## write the lock files again after a change of pyproject.toml; pins that still fit stay
	.ci/lock

upgrade:  ## move every pin of the lock files to its newest release
	.ci/lock --upgrade
