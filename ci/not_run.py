"""Print which tests a run skipped, and why: `python ci/not_run.py REPORT.xml`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def skipped(report: Path) -> Counter[tuple[str, str]]:
    """Return (module, reason) of all skipped tests in a JUnit report, with their number."""
    found: Counter[tuple[str, str]] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        for skip in case.iter("skipped"):
            found[case.get("classname") or "?", (skip.get("message") or "no reason given").strip()] += 1
    return found


if __name__ == "__main__":
    for (module, reason), number in sorted(skipped(Path(sys.argv[1])).items()):
        print(f"not run: {module} ({number}): {reason}")
