"""Exit codes that a launcher and its ranks exchange."""

# Process id of gpt2train.launch, set by it for its ranks. Ranks then leave the report of a lost rank to the launcher.
LAUNCHER = "GPT2TRAIN_LAUNCHER"
USER_ERROR = 2  # exit code of a rank for a user's mistake
LOST_CONTACT = 3  # exit code of a rank that failed only because another one did
PEER_HUNG = 4  # exit code of a rank that detected and reported a hung rank
RESUMES = "; the same command resumes from the last checkpoint"  # end of the line of a training that was killed
