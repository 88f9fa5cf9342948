"""The report of a bench: one file that holds what the outcome says, as a browser shows it, and asks nobody for more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from dali_feed.bench import plots
from dali_feed.bench.contract import Outcome
from dali_feed.bench.kept import from_json, to_json
from dali_feed.bench.report import compared, page, write
from dali_feed.bench.told import told_of
from dali_feed.cli.bench.report import report
from dali_feed.errors import ConfigError
from dali_feed.feed.stages import StageStats, WaitCause
from dali_feed.feed.stats import Stats

EVIL = "</title><script>alert(1)</script>&\"'"
NOTHING = Stats(*(0,) * 6, *(0.0,) * 7, "", ())
LONG = "a-name-of-a-contestant-that-has-no-end-" * 3

# A page of its own that shows the report at two widths, and writes down what it measured there.
FRAMES = """<body><script>
const page = DOC, found = {};
for (const width of [1280, 400]) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.onload = () => {
    const doc = frame.contentDocument, root = doc.documentElement;
    for (const each of doc.querySelectorAll("details")) each.open = true;
    const may = e => e.closest(".scroll, pre") && !e.matches(".scroll, pre");
    found[width] = {
      scroll: root.scrollWidth, client: root.clientWidth,
      over: [...doc.querySelectorAll("body *")].filter(
        e => !may(e) && e.getBoundingClientRect().right > root.clientWidth + 1
      ).map(e => e.tagName + "." + e.className),
      bars: [...doc.querySelectorAll(".bar:not(.part)")].map(e => [e.parentElement.getAttribute("aria-label"),
        e.getBoundingClientRect().width / e.parentElement.getBoundingClientRect().width]),
      parts: [...doc.querySelectorAll(".bar.part")].map(
        e => e.getBoundingClientRect().width / e.parentElement.getBoundingClientRect().width),
      asked: frame.contentWindow.performance.getEntriesByType("resource").length,
    };
    document.documentElement.dataset.found = JSON.stringify(found);
  };
  frame.srcdoc = page;
  document.body.append(frame);
}
</script></body>"""


def told() -> dict[str, Any]:
    """What a loader says that waits for its decoder."""
    causes = (WaitCause("engine", 3.0), WaitCause(EVIL, 0.5))
    stages = (StageStats("read", 2, 64, 1.25, 0.5, 7.75, 4000.0), StageStats(LONG, 1, 64, 0.0, 9.5, 0.25, None))
    train = StageStats("train", 1, 64, 3.5, 0.5, 0.0, 128.0)
    stats = replace(NOTHING, batches=4, samples=64, step_wait=3.5, stages=(*stages, train))
    return told_of(replace(stats, wait_causes=causes))


def outcome() -> Outcome:
    """Of every part a little, and texts that a page must not take for its own."""
    rows = [
        {"who": "tar", "way": "", "img/s": 2000, "least": 1900, "most": 2100},
        {"who": "ceiling", "way": "", "img/s": 2500, "least": 2400, "most": 2600},
        {"who": "torch", "way": EVIL, "img/s": 1000, "least": 900, "most": 1100},
        {"who": LONG, "way": "x2", "img/s": 500, "least": 500, "most": 500},
    ]
    waits = {"tar": [0.02] * 600 + [0.9] + [0.02] * 600, "torch": [0.05, 0.06]}
    stages = {"tar": {"source": 1.0, "decode": 3.0}, "torch": {"decode": 2.0, EVIL: 2.0}}
    about = {"machine": "a machine", "data": EVIL, "commit": "0" * 90}
    return Outcome("loader", about, rows, waits, stages, {EVIL: EVIL}, [EVIL, "Raise threads."], {"tar": told()})


def test_an_outcome_survives_json() -> None:
    """What is kept is what was found."""
    assert from_json(to_json(outcome())) == outcome()


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("rows", {}),
        ("waits", {"x": ["1"]}),
        ("stages", {"x": 1}),
        ("missing", {"x": 1}),
        ("version", 9),
        ("kind", 1),
        ("told", {"x": {}}),
        ("told", {"x": told() | {"stages": [{"name": "read"}]}}),
    ],
)
def test_json_that_is_no_outcome_is_refused(member: str, value: object) -> None:
    """With the file and the member that is wrong."""
    text = json.dumps(json.loads(to_json(outcome())) | {member: value})
    with pytest.raises(ConfigError, match=rf"^kept\.json: must be what .*{member}"):
        from_json(text, "kept.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "io"}'])
def test_other_json_is_refused(text: str) -> None:
    """It says what the file must be."""
    with pytest.raises(ConfigError, match=r"must be what `dali-feed bench \.\.\. --json` prints; found "):
        from_json(text)


def test_a_text_of_data_is_text() -> None:
    """No tag and no address of the outcome's becomes the page's own, and the page has no script."""
    for told in (page(outcome()), compared([(EVIL, outcome()), ("after", outcome())])):
        assert "<script" not in told
        assert escape(EVIL) in told
        assert not re.search(r"<[^>]*\s(src|href)=|url\(|@import", told)


def test_a_browser_is_told_to_ask_nobody() -> None:
    """Both pages forbid scripts and requests before anything of the outcome's is read."""
    for told in (page(outcome()), compared([(EVIL, outcome()), ("after", outcome())])):
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', told)
        assert policy
        assert policy.start() < told.index("<title")
        rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy[1]).split(";"))
        assert rules["default-src"] == "'none'"
        assert "script-src" not in rules


def test_the_verdict_comes_with_what_it_is_made_of() -> None:
    """The sentence, each stage with its three kinds of seconds, and the ceiling."""
    found = outcome()
    found.rows[0]["of ceiling"] = 0.8
    text = page(found)
    part = unescape(text[text.index("Where the time went, what to change first") : text.index("What the figures say")])
    assert "decode-bound: 86% of the step wait is the decoder" in part
    assert "<td>read</td><td>2</td><td>1.25</td><td>0.50</td><td>7.75</td><td>4,000</td>" in part
    assert f"The loop waited for: engine 3.00 s, {EVIL} 0.50 s." in part
    assert "the same engine fed from memory, gives 2,500 images/s; tar reaches 0.8 of it." in part
    found.rows[0]["most"] = 2450
    assert "tar reaches 0.8 of it (may be chance)." in page(found)
    assert "what to change first" not in page(replace(found, told={}))


def test_a_minute_is_enough() -> None:
    """The answer, who was how fast, the verdict and its advice stand above all tables, and nothing is said twice."""
    found = outcome()
    found.findings += ["tar's own verdict: decode-bound.", "More."]
    found.told["tar"]["causes"]["garbage"] = 0.001
    text = unescape(page(found))
    order = ['class="answer"', "Images per second", "what to change first", 'class="verdict"', "<details", "<td>read"]
    places = [text.index(each) for each in (*order, "What the figures say", "More.")]
    assert places == sorted(places)
    assert "<table" not in text[: text.index("<details")]
    assert "own verdict" not in text
    assert "garbage" not in text  # of a wait that rounds to nothing


def test_who_does_other_work_is_told() -> None:
    """Of a topic some read alone, and our loader is the one that is called tensors; elsewhere all do the same."""
    rows = [{"who": who, "way": "", "records/s": 9, "least": 9, "most": 9} for who in ("plain", "tensors", "other")]
    text = page(Outcome("kafka", {}, rows))
    assert "plain, in order or at random reads alone" in text
    assert [re.findall('"bar ([a-z]+)"', row)[0] for row in text.split('class="who"')[1:]] == ["other", "ours", "other"]
    assert "All did the same work" in page(outcome())


def test_no_wait_is_lost() -> None:
    """Of more steps than a drawing has points the longest wait is still the top of the line."""
    (line,) = re.findall(r'<path d="([^"]*)"', page(outcome()).split("<b>tar</b>")[1])[:1]
    heights = [float(point.split()[1]) for point in line[1:].split(" L")]
    assert len(heights) == 600
    # 0.9 s on a scale of five decades from 10 microseconds: 4.95 of them up
    assert min(heights) == pytest.approx(100 - 100 * 4.954 / 5, abs=0.1)


def test_a_few_steps_make_no_line() -> None:
    """Their numbers are told, without a drawing of what is not there."""
    found = replace(outcome(), waits={"tar": [0.02] * 8, "torch": [0.02] * 7})
    drawn = page(found).split("<figure")[1:]
    assert ["<svg" in figure for figure in drawn] == [True, False]
    assert "7 steps; half wait at most" in drawn[1]


def test_an_empty_outcome_has_a_report() -> None:
    """It says that nothing was measured."""
    assert "Nothing was measured" in page(Outcome("loader", {}))


def test_two_that_were_kept_stand_beside_each_other(tmp_path: Path) -> None:
    """With the ratio of the second to the first; two of different kinds do not."""
    after = outcome()
    after.rows[0] |= {"img/s": 3000, "most": 3100}
    for name, each in (("before", outcome()), ("after", after), ("io", Outcome("io", {}))):
        (tmp_path / f"{name}.json").write_text(to_json(each))
    report([tmp_path / "before.json", tmp_path / "after.json"], tmp_path / "both.html")
    assert "after.json is 1.50 of before.json" in (tmp_path / "both.html").read_text()
    with pytest.raises(ConfigError, match="found loader and io"):
        report([tmp_path / "before.json", tmp_path / "io.json"], tmp_path / "both.html")
    with pytest.raises(ConfigError, match="must be a file that can be written"):
        report([tmp_path / "before.json"], tmp_path / "none" / "report.html")


def test_pictures_are_drawn(tmp_path: Path) -> None:
    """Figures and waits each have a PNG; what there is nothing of has none."""
    assert [path.name for path in plots.write(outcome(), tmp_path)] == ["loader.png", "loader_waits.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert plots.write(Outcome("loader", {}), tmp_path / "none") == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on PATH")
def test_a_browser_shows_it_within_the_page(tmp_path: Path) -> None:
    """At 1280 and 400 pixels all is within the page, bars are as wide as their numbers, nothing is asked for."""
    write(outcome(), tmp_path / "report.html")
    told = json.dumps((tmp_path / "report.html").read_text()).replace("</", "<\\/")
    wrapper = tmp_path / "frames.html"
    wrapper.write_text(FRAMES.replace("DOC", told), encoding="utf-8")
    flags = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'user'}"),
        *("--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri()),
    )
    done = subprocess.run(["chromium", *flags], capture_output=True, text=True, check=True)
    held = re.search(r'data-found="([^"]*)"', done.stdout)
    assert held, done.stdout[:2000]
    measured = json.loads(unescape(held[1]))
    assert sorted(measured) == ["1280", "400"]
    for width, found in measured.items():
        assert (found["over"], found["scroll"], found["asked"]) == ([], found["client"], 0), width
        widths = {who.partition(":")[0]: share for who, share in found["bars"]}
        expected = {"tar": 2000 / 2600, "ceiling": 2500 / 2600, "torch": 1000 / 2600, LONG: 500 / 2600}
        assert widths == pytest.approx(expected, abs=2e-3), width
        assert found["parts"] == pytest.approx([0.25, 0.75, 0.5, 0.5], abs=5e-3), width
