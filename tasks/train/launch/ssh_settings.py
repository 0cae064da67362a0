"""Settings of the ssh launcher."""

import shlex

from pydantic import Field, field_validator

from gpt2train.settings import Settings


class SshSettings(Settings):
    """Settings of the ssh launcher: the remote shell, and the installation on the hosts."""

    command: str = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3 {host}"
    """Command that runs a shell line on {host}; the line is appended as its last argument. Your ssh configuration
    (~/.ssh/config: user, port, key, jump host) applies."""
    python: str | None = None
    """Path of Python on the hosts. None: the same as on this machine."""
    folder: str | None = None
    """Working folder on the hosts: the checkout if gpt2train is not installed. None: the same as on this machine."""
    variables: tuple[str, ...] = ("NCCL_*", "GLOO_*", "TORCH_*", "PYTORCH_*", "CUDA_DEVICE_ORDER")
    """Names of environment variables that are passed on to the ranks; * matches any characters."""
    peer_timeout: float = Field(60.0, ge=1, le=604_800)
    """Seconds without a heartbeat after which a host counts as lost, and for the host this machine."""
    wait: float = Field(600.0, ge=0, le=604_800)
    """Seconds that a restart (`launch.restarts`) waits for a lost host."""

    @field_validator("command")
    @classmethod
    def _names_the_host(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{error}; quote it as a shell requires") from error
        if not any("{host}" in word for word in words):
            raise ValueError("the command must contain {host}, as in 'ssh {host}'")
        return value
