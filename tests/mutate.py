"""Break the forward pass in one place at a time, on a copy of the installed package, and see a named test turn red.

    python tests/mutate.py            # every mutation; exit 1 when one survives
    python tests/mutate.py --list

The places are those that a correct-looking implementation gets wrong. A mutation whose text is not found is an error:
the list follows the code.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ORACLE = "tests/families/deepseek_v4/test_oracle.py"
ENGINE = "families/deepseek_v4/engine.py"
ROPE = "families/deepseek_v4/rope.py"
WEIGHTS = "families/deepseek_v4/weights.py"


@dataclass(frozen=True)
class Mutation:
    """One change of one file inside the package, and the test that must notice it."""

    name: str
    file: str
    old: str
    new: str
    test: str


def oracle(prompt: str) -> str:
    return f"{ORACLE}::test_prompt_logits[{prompt}]"


MUTATIONS = (
    Mutation("window one longer", ENGINE, "            g.window,\n", "            g.window + 1,\n", oracle("window")),
    Mutation("window one shorter", ENGINE, "            g.window,\n", "            g.window - 1,\n", oracle("window")),
    Mutation(
        "no inverse rope on the output",
        ENGINE,
        "g.heads, 1, buf.attended)",
        "g.heads, 0, buf.attended)",
        oracle("short"),
    ),
    Mutation("no YaRN", ROPE, "if yarn is None:", "if True:", oracle("over64")),
    Mutation(
        "main theta in compressed layers",
        ROPE,
        "_powers(geometry.compress_rope_theta",
        "_powers(geometry.rope_theta",
        oracle("over64"),
    ),
    Mutation(
        "no per-head q norm",
        ENGINE,
        "stages.rms_norm(per_head, None, g.norm_epsilon, per_head)",
        "pass",
        oracle("short"),
    ),
    Mutation("index_topk ignored", ENGINE, "if visible > g.index_top_k:", "if False:", oracle("over64")),
    Mutation(
        "index_topk one less",
        ENGINE,
        "return buf.selected ",
        "buf.selected[:, -1] = -1; return buf.selected ",
        oracle("over64"),
    ),
    Mutation(
        "indexer query without rope",
        ENGINE,
        "stages.rope(cosine, sine, g.index_heads, 0, buf.index_q)",
        "pass",
        oracle("over64"),
    ),
    Mutation(
        "entry position at the window end",
        ENGINE,
        "first * ratio, ratio, closed",
        "first * ratio + ratio - 1, ratio, closed",
        oracle("over64"),
    ),
    Mutation("CSA halves not overlapping", ENGINE, "int(ratio == 4),", "0,", oracle("over64")),
    Mutation(
        "Sinkhorn: one iteration less", ENGINE, "g.sinkhorn_iterations,", "g.sinkhorn_iterations - 1,", oracle("short")
    ),
    Mutation("Sinkhorn: only 4 iterations", ENGINE, "g.sinkhorn_iterations,", "4,", oracle("short")),
    Mutation("no attention sink", ENGINE, "layer.sinks,", "layer.sinks - np.float32(1e30),", oracle("short")),
    Mutation(
        "wo_a groups mixed up",
        ENGINE,
        "buf.attended, buf.o_low, g.o_groups)",
        "np.ascontiguousarray(buf.attended[:, ::-1]), buf.o_low, g.o_groups)",
        oracle("short"),
    ),
    Mutation(
        "no selection bias",
        ENGINE,
        "layer.bias, fixed",
        "None if layer.bias is None else layer.bias * 0, fixed",
        oracle("short"),
    ),
    Mutation(
        "hash layers by another token's row", ENGINE, "layer.tid2eid[ids]", "layer.tid2eid[ids - 1]", oracle("short")
    ),
    Mutation("no routed scaling", ENGINE, "fixed, g.routed_scale,", "fixed, 1.0,", oracle("short")),
    Mutation(
        "shared expert not clamped",
        ENGINE,
        "stages.swiglu(buf.gate, buf.up, g.swiglu_limit",
        "stages.swiglu(buf.gate, buf.up, 0.0",
        oracle("short"),
    ),
    Mutation(
        "routed experts not clamped",
        ENGINE,
        "self._limit = geometry.swiglu_limit",
        "self._limit = 0.0",
        oracle("short"),
    ),
    Mutation("w1 and w3 swapped", ENGINE, "ids, w1, w3, w2, self", "ids, w3, w1, w2, self", oracle("short")),
    Mutation(
        "streams collapse with the other site's weights",
        WEIGHTS,
        'hc_ffn=_hyper(table, prefix + "hc_ffn")',
        'hc_ffn=_hyper(table, prefix + "hc_attn")',
        oracle("short"),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="print the mutations and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{m.name:48s} {m.test}" for m in MUTATIONS))
        return 0
    spec = importlib.util.find_spec("coli")
    if spec is None or spec.origin is None:
        print("mutate: coli is not installed in this Python", file=sys.stderr)
        return 2
    package = Path(spec.origin).parent
    survivors = []
    with tempfile.TemporaryDirectory(prefix="coli-mutate-") as folder:
        copy = Path(folder) / "coli"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for test in sorted({m.test for m in MUTATIONS}):
            if run_test(test, Path(folder)) != 0:
                print(f"mutate: {test} fails before any mutation", file=sys.stderr)
                return 2
        for mutation in MUTATIONS:
            file = copy / mutation.file
            source = file.read_text(encoding="utf-8")
            if source.count(mutation.old) != 1:
                print(f"mutate: {mutation.name}: its text is not found just once in {mutation.file}", file=sys.stderr)
                return 2
            file.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
            code = run_test(mutation.test, Path(folder))
            file.write_text(source, encoding="utf-8")
            print(f"{'noticed ' if code == 1 else 'SURVIVED'}  {mutation.name:48s} {mutation.test}", flush=True)
            if code != 1:  # 1: the test ran and failed; anything else is no proof
                survivors.append(mutation.name)
    print(f"mutate: {len(MUTATIONS) - len(survivors)} noticed, {len(survivors)} survived")
    return 1 if survivors else 0


def run_test(test: str, python_path: Path) -> int:
    """Run one test against the package in `python_path`; return pytest's exit code."""
    environment = dict(os.environ, PYTHONPATH=str(python_path), PYTHONDONTWRITEBYTECODE="1")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    root = Path(__file__).resolve().parent.parent
    return subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
