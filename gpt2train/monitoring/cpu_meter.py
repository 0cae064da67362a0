"""Energy of the CPU packages of this machine by RAPL, the counters of Intel's and AMD's processors.

Linux has them in `/sys/class/powercap`, on most systems for root alone. A zone `intel-rapl:0` is a package, on AMD's
processors too; `intel-rapl:0:0` is a part of it, and `psys` holds the packages, so that neither is counted.
"""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
JOULES = 1e-6  # of a microjoule


class CpuMeter:
    """Meter of all packages of a machine. The energy is that of all programs that run on it.

    Args:
        zones: folders of the packages, whose counters can be read.
    """

    def __init__(self, zones: list[Path]) -> None:
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._last = [_number(counter) for counter in self._counters]
        self._total, self._failed = 0, False

    def update(self) -> None:
        """Add the energy since the last call.

        A counter begins again at 0 after its range, at 200 W and a range of 262 kJ after 22 minutes. It is to be called
        more often than that, at each step: two readings take 20 us.
        """
        try:
            now = [_number(counter) for counter in self._counters]
        except (OSError, ValueError):
            self._failed = True
            return
        for before, after, whole in zip(self._last, now, self._ranges, strict=True):
            self._total += after - before if after >= before else after - before + whole
        self._last = now

    def read(self) -> float | None:
        """Return the joules since the last reading; None if a counter could not be read at some time."""
        self.update()
        if self._failed:
            return None
        joules, self._total = self._total * JOULES, 0
        return joules


def open_cpu_meter(powercap: Path = POWERCAP) -> CpuMeter | None:
    """Meter of this machine; None without counters that this user may read."""
    try:
        zones = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        return CpuMeter(packages) if packages else None
    except (OSError, ValueError):
        return None


def _number(file: Path) -> int:
    return int(file.read_text())
