"""What a tool leaves running is ended with it, however it ended itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from coli.backends.child import run_child


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX's")
def test_a_process_that_a_tool_leaves_behind_is_ended(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nsleep 600 &\necho $!\n")
    tool.chmod(0o755)
    ended = run_child([tool], deadline_s=30, max_bytes=100)
    assert ended.end == "exit"
    left = int(ended.output)
    for _ in range(500):  # its parent is gone: init reaps it, soon
        state = Path(f"/proc/{left}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    os.kill(left, 9)
    pytest.fail("it still runs")
