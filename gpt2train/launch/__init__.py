"""Processes of a training job: launcher, elastic agent, rendezvous, signals, exit codes."""
