"""Launcher for Slurm: a batch script from the settings, submitted, followed, and resubmitted until the run is done.

settings.py     resources and options of the Slurm job
script.py       `slurm.sh` in the run folder, which can also be submitted by hand
controller.py   wrappers of sbatch, scontrol, squeue, scancel, sinfo, sacct
output.py       tail of a job's output file
follow.py       reports of a job's output and state until it has ended
run.py          the launcher
"""
