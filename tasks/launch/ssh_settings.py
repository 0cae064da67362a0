"""How other machines are reached, for a job that is started on several by ssh."""

import shlex

from pydantic import Field, field_validator

from gpt2train.settings import Settings


class SshSettings(Settings):
    """The remote shell, and what is found at its other end."""

    command: str = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3 {host}"
    """Command that runs a shell line on {host}; the line is added as its last argument. Your own ssh configuration
    (~/.ssh/config: user, port, key, jump host) counts."""
    python: str | None = None
    """Path of Python there. None: as here."""
    folder: str | None = None
    """Folder there in which it is started: the checkout, where gpt2train is not installed. None: as here."""
    variables: tuple[str, ...] = ("NCCL_*", "GLOO_*", "TORCH_*", "PYTORCH_*", "CUDA_DEVICE_ORDER")
    """Names of environment variables of this process that the ranks there get too; * stands for any characters."""
    patience: float = Field(60.0, ge=1)
    """Seconds without a sign of life until a host, and for the host this machine, counts as lost."""
    wait: float = Field(600.0, ge=0)
    """Seconds that a restart (`launch.restarts`) waits for a host that was lost."""

    @field_validator("command")
    @classmethod
    def _names_the_host(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{error}; quote it as a shell wants it") from error
        if not any("{host}" in word for word in words):
            raise ValueError("the command must say where {host} goes, as in 'ssh {host}'")
        return value
