"""A training job under Slurm: a script written from the settings, submitted, followed, and submitted again when due.

settings.py     what Slurm is asked for
script.py       `slurm.sh` in the run folder, which a person can submit as well
controller.py   sbatch, scontrol, squeue, scancel: one function a question
output.py       the lines of a job's output, as the file grows
follow.py       what a job prints and what Slurm says of it, told until it is over
run.py          the launcher: all of it, to the end of the training
"""
