"""Whatever a plugin does, coli goes on: each misbehaviour is a small installed package here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coli.errors import FamilyError
from coli.families.probe import Verdict, load_engine, probe
from coli.families.registry import Family, Registry

from .plugin_site import ENGINE, TOML, install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def only(registry: Registry, package: str) -> Family:
    return next(f for f in registry.families() if f.descriptor.id == package)


def refusal(package: str, plugins: tuple[str, ...] | None = None) -> tuple[str, str]:
    """Return code and reason of a refused plugin; the built-in families must be there all the same."""
    registry = Registry.load(plugins)
    assert registry.resolve({"model_type": "deepseek_v4"}).descriptor.id == "deepseek_v4"
    assert all(f.descriptor.id != package for f in registry.families())
    found = [r for r in registry.refused() if package in r.provider.distribution]
    assert len(found) == 1, registry.refused()
    return found[0].code, found[0].reason


def verdict_on(site: Path, package: str, engine: str, deadline_s: float = 30.0) -> Verdict:
    install(site, package, engine=engine)
    return probe(only(Registry.load(), package), None, deadline_s)


def test_good_plugin_is_found_without_importing_it(site: Path) -> None:
    install(site, "good", init="raise SystemExit('imported')", engine=ENGINE)
    family = only(Registry.load(), "good")
    assert family.provider[:3] == ("plugin", "good-plugin", "1.0")
    assert family.provider.path == str(site / "good")
    assert Registry.load().resolve({"model_type": "good_type"}).descriptor.engine == "good.engine:Engine"
    assert "good" not in sys.modules


# ---- descriptor and metadata ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "code", "says"),
    [
        ("id = ", "plugin.descriptor", "not TOML"),
        ("id = 'x'", "plugin.descriptor", "model_types: missing"),
        (TOML.format(package="bad").replace(">=1,<2", ">=2"), "plugin.api", "it wants family API >=2, this is 1.0"),
        (TOML.format(package="bad").replace("bad.engine", "os.path"), "plugin.engine", "is not in its package bad"),
        (TOML.format(package="bad").replace("bad_type", "deepseek_v4"), "plugin.duplicate", "deepseek_v4"),
        (TOML.format(package="bad").replace('"bad"', '"deepseek_v4"'), "plugin.duplicate", "id deepseek_v4"),
        (TOML.format(package="bad") + "\ufffe" + "#" * 300_000, "plugin.descriptor", "larger than"),
    ],
)
def test_descriptor_of_a_plugin_is_judged(site: Path, toml: str, code: str, says: str) -> None:
    install(site, "bad", toml=toml)
    found, reason = refusal("bad")
    assert found == code and says in reason


def test_alias_of_a_built_in_family_is_not_given_away(site: Path) -> None:
    install(site, "bad", toml=TOML.format(package="bad").replace("engine", 'aliases = ["deepseek_v4"]\nengine', 1))
    assert refusal("bad")[0] == "plugin.duplicate"


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("bad.inner", "plugin.entry-point"),
        ("bad:thing", "plugin.entry-point"),
        ("../bad", "plugin.entry-point"),
        ("not_there", "plugin.package"),
        ("json", "plugin.descriptor"),
        ("sys", "plugin.package"),
    ],
)
def test_entry_point_must_name_a_package(site: Path, entry: str, code: str) -> None:
    install(site, "bad", entry=entry)
    assert refusal("bad")[0] == code


def test_unreadable_metadata_hides_no_other_plugin(site: Path) -> None:
    install(site, "bad", entry_points="[coli.families\nbad = bad\n\x00")
    install(site, "worse", entry_points="[coli.families]\n= = =\n")
    install(site, "good")
    assert only(Registry.load(), "good")
    assert all(f.descriptor.id not in ("bad", "worse") for f in Registry.load().families())


def test_missing_name_in_metadata(site: Path) -> None:
    install(site, "bad", metadata="nothing: here\n")
    install(site, "good")
    assert only(Registry.load(), "good")
    assert refusal("bad")[0] == "plugin.metadata"


def test_two_plugins_with_one_type_are_both_refused(site: Path) -> None:
    install(site, "first")
    install(site, "second", toml=TOML.format(package="second").replace("second_type", "first_type"))
    assert refusal("first")[0] == refusal("second")[0] == "plugin.duplicate"
    # The allow list decides.
    assert only(Registry.load(("first-plugin",)), "first")


def test_allow_list(site: Path) -> None:
    install(site, "good")
    assert refusal("good", ()) == ("plugin.not-allowed", "COLI_PLUGINS does not name good-plugin")
    assert refusal("good", ("other",))[0] == "plugin.not-allowed"
    for name in ("good-plugin", "Good_Plugin", "good"):
        assert only(Registry.load((name,)), "good")
    with pytest.raises(FamilyError, match=r"plugin good-plugin 1\.0 provides it, but COLI_PLUGINS does not name"):
        Registry.load(()).resolve({"model_type": "good_type"})


# ---- engines --------------------------------------------------------------------------------------------------------


def test_good_engine(site: Path, tmp_path: Path) -> None:
    assert verdict_on(site, "good_engine", ENGINE) == Verdict(True, "ok", "")
    engine = load_engine(only(Registry.load(), "good_engine"), tmp_path / "cache")
    assert engine.__module__ == "good_engine.engine"


@pytest.mark.parametrize(
    ("engine", "code", "says"),
    [
        ("raise RuntimeError('no\\nway')", "plugin.import", "raised RuntimeError: no way"),
        ("import not_installed_anywhere", "plugin.import", "No module named 'not_installed_anywhere'"),
        ("import sys; sys.exit(0)", "plugin.import", "raised SystemExit"),
        ("raise KeyboardInterrupt", "plugin.import", "raised KeyboardInterrupt"),
        ("def", "plugin.import", "SyntaxError"),
        ("Engine = 3", "plugin.import", "is not a class"),
        ("class Engine:\n def forward(self): ...", "plugin.import", "has no method reset, close"),
        ("pass", "plugin.import", "has no attribute 'Engine'"),
        ("import os; os._exit(0)", "plugin.exit", "ended the process (exit status 0)"),
        ("import os; os._exit(7)", "plugin.exit", "ended the process (exit status 7)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "plugin.crash", "SIGSEGV"),
        ("import os; os.abort()", "plugin.crash", "SIGABRT"),
    ],
)
def test_bad_engine_is_a_verdict(site: Path, engine: str, code: str, says: str) -> None:
    verdict = verdict_on(site, "bad_engine", engine)
    assert (verdict.ok, verdict.code) == (False, code)
    assert says in verdict.reason and "\n" not in verdict.reason
    assert "bad_engine" not in sys.modules


def test_engine_that_hangs_is_ended(site: Path) -> None:
    started = time.monotonic()
    verdict = verdict_on(site, "hangs", "import time\nwhile True: time.sleep(3600)", deadline_s=1.0)
    assert verdict == Verdict(False, "plugin.hang", "importing its engine took longer than 1 s")
    assert time.monotonic() - started < 30


def test_what_an_engine_starts_ends_with_it(site: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    engine = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n" + ENGINE
    )
    assert verdict_on(site, "spawns", engine).ok
    pid = int(pid_file.read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # A killed orphan may wait for its new parent to collect it.
        if (
            Path(f"/proc/{pid}/stat").exists()
            and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        ):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the grandchild is still there")


def test_engine_that_prints_does_not_reach_our_output(site: Path, tmp_path: Path) -> None:
    engine = "import os\nprint('noise')\nos.write(2, b'more noise')\n" + ENGINE
    verdict = verdict_on(site, "prints", engine)
    assert verdict.ok and verdict.printed
    code = (
        "import json\nfrom coli.families.registry import Registry\nfrom coli.families.probe import load_engine\n"
        "family = next(f for f in Registry.load().families() if f.descriptor.id == 'prints')\n"
        "print(json.dumps(load_engine(family, None).__name__))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert json.loads(done.stdout) == "Engine"
    assert "noise" in done.stderr


def test_engine_that_writes_without_end(site: Path) -> None:
    engine = "import os\nwhile True: os.write(1, b'x' * 65536); print('y' * 65536)"
    assert verdict_on(site, "floods", engine, deadline_s=1.0).code == "plugin.hang"


def test_verdicts_are_remembered_until_the_plugin_changes(site: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    marker = tmp_path / "count"
    engine = f"open({str(marker)!r}, 'a').write('x')\n" + ENGINE
    install(site, "counted", engine=engine)
    family = only(Registry.load(), "counted")
    first, second = probe(family, cache), probe(family, cache)
    assert (first.cached, second.cached) == (False, True)
    assert second == first._replace(cached=True)
    assert marker.read_text() == "x"
    (site / "counted" / "engine.py").write_text(engine + "raise ValueError('changed')\n")
    os.utime(site / "counted" / "engine.py", ns=(1, time.time_ns() + 10**9))
    assert probe(family, cache).code == "plugin.import"
    for file in (cache / "plugins").iterdir():
        file.write_text("[not json")
    assert probe(family, cache).cached is False


def test_a_cache_that_cannot_be_written_is_no_failure(site: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    install(site, "plain")
    assert probe(only(Registry.load(), "plain"), tmp_path / "file").ok


def test_load_engine_refuses_with_the_reason(site: Path) -> None:
    install(site, "broken", engine="1 / 0")
    with pytest.raises(FamilyError) as caught:
        load_engine(only(Registry.load(), "broken"), None)
    assert caught.value.code == "plugin.import"
    assert "ZeroDivisionError" in str(caught.value) and "broken-plugin" in str(caught.value.fix)
