"""Record of the hosts that the processes of a command connect to and of the names that they resolve."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

NOTES = "GPT2TRAIN_TEST_NOTES"
# Imported by every Python process. Connections by C code (torch's own store, gloo) raise no audit event.
SITECUSTOMIZE = f"""
import os, sys
def _note(event, arguments, path=os.environ.get({NOTES!r})):
    if not path or not event.startswith("socket."):
        return
    what = event[7:]
    if what in ("getaddrinfo", "gethostbyname", "gethostbyaddr"):
        host = arguments[0]
    elif what in ("connect", "sendto", "sendmsg") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    with open(path, "a") as file:
        file.write(f"{{os.getpid()}} {{what}} {{host or 'localhost'}}\\n")
sys.addaudithook(_note)
"""


@dataclass(frozen=True)
class NetworkAudit:
    """Record of the network accesses of some processes, in a file of a folder."""

    folder: Path

    def environment(self) -> dict[str, str]:
        hook = self.folder / "hook"
        hook.mkdir(parents=True, exist_ok=True)
        (hook / "sitecustomize.py").write_text(SITECUSTOMIZE)
        path = os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, NOTES: str(self.folder / "notes")}

    def notes(self) -> list[tuple[int, str, str]]:
        """Process, call and host of each access; each once."""
        lines = (self.folder / "notes").read_text().splitlines()
        return sorted({(int(number), what, host) for number, what, host in map(str.split, lines)})

    def outside(self) -> list[tuple[int, str, str]]:
        return [note for note in self.notes() if not is_this_machine(note[2])]


def is_this_machine(host: str) -> bool:
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified  # to be listened at
