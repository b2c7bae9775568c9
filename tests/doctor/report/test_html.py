"""The page: the picture of the memory, and nothing from the machine that a browser would obey."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from coli.backends.devices import DeviceFacts, Driver, Fact, Gpu, Memory
from coli.doctor.checks.finding import Evidence, Finding, Row
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report
from coli.doctor.report.html import Bar, Part, memory_bars, render_html

from ..machines import Machine

GIB = 1 << 30


class Tags(HTMLParser):
    """The names of tags, those that are left open, and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "tr", "td", "th"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def gpu() -> Gpu:
    sizes = [Fact.of(size * GIB, "nvidia-smi") for size in (10, 7, 2, 1)]
    return Gpu(0, name=Fact.of("RTX <3080>", "nvidia-smi"), memory=Memory(Fact.of("dedicated", "x"), *sizes))


def test_bars_add_up_to_what_there_is(tmp_path: Path) -> None:
    facts = Machine(tmp_path).facts(fields=("memory",))
    ram = memory_bars(facts)[0]
    assert (ram.name, ram.nbytes) == ("RAM", 32768000 * 1024)
    assert {part.name: part.nbytes for part in ram.parts}["in use"] == (32768000 - 24576000) * 1024


def test_a_card_shows_use_driver_and_rest() -> None:
    facts = MachineFacts(devices=DeviceFacts("linux", False, Driver("ok", ""), (gpu(),)))
    parts = (Part("in use", 2 * GIB, "used"), Part("driver", GIB, "kept"), Part("free", 7 * GIB, "free"))
    assert memory_bars(facts) == (Bar("GPU 0: RTX <3080>", parts),)


def test_the_page_stands_alone_and_closes_what_it_opens() -> None:
    finding = Finding(
        "driver.failed",
        "fail",
        "it said <script>alert(1)</script>",
        (Evidence("<img src=x onerror=alert(1)>", "'\"&"),),
        commands=("echo '</pre>'",),
    )
    rows = (Row("driver.state", "driver", (finding,)),)
    facts = MachineFacts(model="</title><b>", devices=DeviceFacts("linux", False, Driver("ok", ""), (gpu(),)))
    page = render_html(Report(rows, facts))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not tags.names & {"script", "img", "link", "iframe"}
    assert tags.addresses == []
    assert "&lt;script&gt;alert(1)" in page
    assert "http" not in page


def test_what_is_worth_knowing_stands_at_the_top_and_other_notes_do_not() -> None:
    notes = [Finding("memory.cgroup", "note", f"{name} note", notable=name == "large") for name in ("large", "small")]
    page = render_html(Report((Row("memory.limit", "memory", tuple(notes)),), MachineFacts()))
    top = page[page.index("Worth knowing") :].partition("<h2>")[0]
    assert "large note" in top
    assert "small note" not in top
    assert "Nothing needs you" not in page
