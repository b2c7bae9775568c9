#!/usr/bin/env python3
"""Stand-in for a command: answers from a replay file and logs its arguments. Called by the scripts of prepared.py.

replay.py REPLAY_JSON KEY LOG ARGUMENTS...: the first entry under KEY whose `args` are all among ARGUMENTS is played.
"""
import json
import sys
import time

replay, key, log, *arguments = sys.argv[1:]
with open(log, "a", encoding="utf-8") as file:
    file.write(json.dumps([key, *arguments]) + "\n")
with open(replay, encoding="utf-8") as file:
    entries = json.load(file)[key]
for entry in entries:
    if all(word in arguments for word in entry.get("args", [])):
        time.sleep(entry.get("sleep", 0))
        sys.stdout.write(entry.get("stdout", ""))
        sys.stderr.write(entry.get("stderr", ""))
        sys.exit(entry.get("rc", 0))
sys.stderr.write(f"replay: no entry for {key} {arguments}\n")
sys.exit(127)
