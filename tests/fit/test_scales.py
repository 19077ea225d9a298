"""Which benchmarks share a scale."""

from __future__ import annotations

import pytest

from cbmm_spark.config.schema import ScalesConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.fit.scales import choose_scales


def test_one_scale_for_each_benchmark_and_one_for_all():
    scales = choose_scales(ScalesConfig(), ["math", "code"])
    assert scales.benchmarks == {
        "overall": frozenset(["math", "code"]), "code": frozenset(["code"]), "math": frozenset(["math"])
    }  # fmt: skip
    assert scales.to_fit == scales.benchmarks
    assert list(scales.benchmarks) == ["overall", "code", "math"]  # the order of publication


def test_the_same_benchmarks_are_fitted_once_and_shown_under_each_name():
    scales = choose_scales(ScalesConfig(groups={"all": ("code", "math")}), ["math", "code"])
    assert scales.fitted == {"overall": "overall", "all": "overall", "code": "code", "math": "math"}
    assert set(scales.to_fit) == {"overall", "code", "math"}
    assert scales.shown_by("overall") == ["overall", "all"]
    assert scales.shown_by("all") == []
    single = choose_scales(ScalesConfig(), ["math"])
    assert single.fitted == {"overall": "overall", "math": "overall"}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (ScalesConfig(per_benchmark=False), ["overall"]),
        (ScalesConfig(overall=False), ["a", "b", "c"]),
        (ScalesConfig(False, False, {"two": ("a", "c")}), ["two"]),
        (ScalesConfig(True, False, {"two": ("a", "c"), "one": ("b",)}), ["one", "two", "a", "b", "c"]),
    ],
)
def test_what_is_asked_for_is_what_there_is(config, names):
    assert list(choose_scales(config, ["c", "a", "b"]).benchmarks) == names


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ScalesConfig(False, False), "no scale to fit"),
        (ScalesConfig(groups={"g": ("a", "nowhere")}), r"scales\.groups\.g names \['nowhere'\]; there are: a, b"),
        (ScalesConfig(groups={"g": ()}), r"scales\.groups\.g names no benchmark"),
        (ScalesConfig(groups={"a": ("a", "b")}), "two scales would be called 'a'"),
        (ScalesConfig(groups={"overall": ("a",)}), "two scales would be called 'overall'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(config, says):
    with pytest.raises(ConfigError, match=says) as caught:
        choose_scales(config, ["b", "a"])
    assert "\n" not in str(caught.value)


def test_a_benchmark_called_overall_needs_another_name_of_the_scale():
    with pytest.raises(ConfigError, match="a benchmark is called 'overall'"):
        choose_scales(ScalesConfig(), ["overall", "code"])
    assert choose_scales(ScalesConfig(overall=False), ["overall", "code"]).to_fit["overall"] == {"overall"}
    assert list(choose_scales(ScalesConfig(), ["overall"]).benchmarks) == ["overall"]
