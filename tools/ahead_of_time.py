"""`make ahead-of-time`: the tests of what a TPU compiler makes of our programs, and how many it accepts."""

import sys

import pytest
from report import close


class Tally:
    """Counts the programs that tests compile, and those of tests that pass."""

    def __init__(self) -> None:
        self.programs = self.accepted = self.failed = 0
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed
        if report.when == "call":
            programs = sum(value for name, value in report.user_properties if name == "programs")
            self.programs += programs
            self.accepted += programs if report.passed else 0
            self.seconds[report.nodeid] = round(report.duration, 2)


def main() -> int:
    tally = Tally()
    status = pytest.main(["tests/test_ahead_of_time.py", *sys.argv[1:]], plugins=[tally])
    line = {"programs": tally.programs, "accepted": tally.accepted, "failed_tests": tally.failed}
    close("ahead-of-time", line, {"seconds": tally.seconds})
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
