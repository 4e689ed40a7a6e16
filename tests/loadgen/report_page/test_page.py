"""The report page: sound HTML that shows every record, stands alone, escapes all texts, and never varies."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadgen.report_page.page import write_page
from loadgen.report_page.records import Estimate, Report

_VOID = {"meta"}


class Outline(HTMLParser):
    """Checks that elements close in order, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.anchors |= {value for name, value in attrs if name == "id" and value}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def record(trace: str = "chat", policy: str = "affinity", seed: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "trace": trace,
        "policy": policy,
        "replicas": 16,
        "routers": 4,
        "seed": seed,
        "hit_ratio": 0.41,
        "ttft_mean_seconds": 1.5,
        "ttft_p50_seconds": 0.5,
        "ttft_p90_seconds": 3.0,
        "ttft_p99_seconds": 16.0,
        "relative_to_oracle": 1.08,
        "busiest_share": 0.07,
        "rejected": 0,
        **fields,
    }


def outline(directory: Path, records: list[dict[str, Any]], **options: Any) -> Outline:
    page = write_page(records, directory, **options).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>\n")
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def many() -> list[dict[str, Any]]:
    return [
        record(
            trace,
            policy,
            seed,
            ttft_mean_seconds=0.011 * number + 0.1,
            relative_to_oracle=1.0 + 0.7 * number,
            ttft_cdf=[[0.1, 0.2], [1.0, 0.9], [9.0, 1.0]],
            uncached_by_cause={"cold": 1000 * number + 5, "evicted": 300, "some_other": 7},
        )
        for number, (trace, policy, seed) in enumerate(
            (t, p, s)
            for t in ("chat", "agent")
            for p in ("oracle", "affinity", "round_robin")
            for s in (1, 2, 3)
        )
    ]


def test_every_record_is_shown(tmp_path: Path) -> None:
    records = many()
    page = outline(tmp_path / "new" / "directory", records)
    text = " ".join(page.text)
    for one in records:
        assert f"{one['ttft_mean_seconds']:.6g}" in text
    assert text.count("round_robin") >= 8
    assert page.tags.count("svg") >= 2 * 6
    assert {"overall", "relative", "hits", "ttft", "curves", "busiest", "misses", "figures"} == page.anchors
    for name, value in page.attributes:
        if name == "href":
            assert value.removeprefix("#") in page.anchors


def test_it_stands_alone(tmp_path: Path) -> None:
    page = outline(tmp_path, many())
    assert not {"script", "link", "img", "iframe", "image", "use", "object", "base"} & set(page.tags)
    assert not {"src", "srcset", "xlink:href", "action", "data"} & {name for name, _ in page.attributes}
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    raw = (tmp_path / "index.html").read_text()
    assert not re.search(r"https?:|//[a-z]|url\(|@import", raw)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_texts_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    records = [
        record(
            evil, evil, seed, uncached_by_cause={evil: 5}, ttft_cdf=[[1, 0.5], [2, 1]], note=evil, **{evil: 1}
        )
        for seed in (1, 2)
    ]
    page = outline(tmp_path, records, title=evil, by=["note"])
    assert "script" not in page.tags
    assert not {name for name, _ in page.attributes if name.startswith("on") or "alert" in name}
    assert "".join(page.text).count("<script>") >= 5


def test_the_same_records_make_the_same_page(tmp_path: Path) -> None:
    pages = [write_page(many(), tmp_path / name).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_plots_name_themselves_and_their_values(tmp_path: Path) -> None:
    page = outline(tmp_path, many())
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert len(labels) == len(set(labels)) >= 2 * 6
    text = "".join(page.text)
    assert "affinity: 3.80x, 95 % confidence" in text
    # The mean of three seeds.
    assert "oracle: cold 1,005 tokens" in text
    assert "some other 7 tokens" in text


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    bare = {"trace": "chat", "policy": "affinity", "seed": 0, "hit_ratio": 0.0, "relative_to_oracle": None}
    page = outline(tmp_path, [bare])
    assert page.anchors == {"hits", "figures"}
    page = outline(tmp_path, [{"trace": "chat", "policy": "affinity"}])
    assert page.anchors == {"figures"}


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_extremes_are_drawn_within_the_frame(tmp_path: Path, scale: float) -> None:
    values: dict[str, Any] = {
        "ttft_p50_seconds": 0.5 * scale,
        "ttft_p99_seconds": 7.0 * scale,
        "relative_to_oracle": 2.0 * scale,
        "ttft_cdf": [[0, 0], [scale, 1]],
        "uncached_by_cause": {"cold": scale},
    }
    records = [
        {**record(seed=seed, policy=policy, ttft_mean_seconds=scale * (1 + seed)), **values}
        for seed in (0, 1)
        for policy in ("a" * 200, "b")
    ]
    page = outline(tmp_path, records)
    for name, value in page.attributes:
        if name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(value) <= 560


def test_runs_that_differ_in_settings_are_told_apart() -> None:
    records = [
        record(routers=routers, seed=seed, staleness=late)
        for routers in (1, 4)
        for seed in (1, 2)
        for late in (0, 1)
    ]
    assert list(Report.of(records).variants) == ["affinity · routers 1", "affinity · routers 4"]
    apart = Report.of(records, by=["staleness"])
    assert len(apart.variants) == 4
    assert all(group.seeds == 2 for group in apart.groups.values())


def test_the_oracle_comes_first_and_the_worst_last() -> None:
    assert list(Report.of(many()).variants) == ["oracle", "affinity", "round_robin"]


def test_an_interval_is_students() -> None:
    estimate = Estimate.of([1.0, 2.0, 3.0])
    # 4.303 standard deviations of 1, over the root of 3.
    assert (estimate.mean, estimate.seeds) == (2.0, 3)
    assert estimate.half_width == pytest.approx(2.484, abs=0.001)
    assert Estimate.of([5.0]).half_width is None
    assert Estimate.of([5.0] * 200).half_width == 0.0


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "no records"),
        ([3], "record 1 is no object"),
        ([record(), {**record(), "trace": None}], "record 2: trace"),
        ([{**record(), "policy": 1}], "record 1: policy"),
        ([record(hit_ratio="high")], "record 1: hit_ratio"),
        ([record(ttft_mean_seconds=float("nan"))], "ttft_mean_seconds"),
        ([record(rejected=-1)], "rejected"),
        ([record(ttft_cdf=[[1]])], "ttft_cdf"),
        ([record(uncached_by_cause=[1])], "uncached_by_cause"),
        ([record(uncached_by_cause={"cold": "many"})], "uncached_by_cause"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, records: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        write_page(records, tmp_path)
    assert not list(tmp_path.iterdir())
