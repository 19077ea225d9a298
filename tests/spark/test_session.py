"""The settings a session is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbmm_spark.config.schema import Config, SparkConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.spark import delta_jars as jars
from cbmm_spark.spark import session


@pytest.fixture(autouse=True)
def a_folder_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    for name in ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar"):
        (folder / name).touch()
    monkeypatch.setenv(jars.FOLDER_VARIABLE, str(folder))
    return folder


def settings(master: str = "local[2]", **conf: str) -> dict[str, str]:
    return session.local_settings(Config(spark=SparkConfig(master=master, conf=conf)))


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert session.local_cores(master) == cores


def test_local_star_is_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.os, "cpu_count", lambda: 7)
    assert session.local_cores("local[*]") == 7


def test_jars_come_from_the_folder_an_operator_names(a_folder_of_jars: Path) -> None:
    assert settings()["spark.jars"].split(",") == [each.as_uri() for each in sorted(a_folder_of_jars.iterdir())]


def test_a_folder_without_delta_is_refused(a_folder_of_jars: Path) -> None:
    (a_folder_of_jars / "io.delta_delta-spark_4.2_2.13-4.4.0.jar").unlink()
    with pytest.raises(ConfigError, match=rf"CBMM_SPARK_JARS={a_folder_of_jars} holds no delta-spark JAR"):
        settings()


def test_packages_given_by_the_user_replace_the_folder() -> None:
    given = settings(**{"spark.jars.packages": "io.delta:x:1"})
    assert "spark.jars" not in given


def test_given_settings_win() -> None:
    assert settings(**{"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_java_options_add_up_unless_they_configure_logging() -> None:
    plain = settings()[session.JAVA_OPTIONS]
    assert plain.startswith("-Dlog4j2.configurationFile=file:///")
    assert settings(**{session.JAVA_OPTIONS: "-Xss4m"})[session.JAVA_OPTIONS] == f"{plain} -Xss4m"
    own = "-Dlog4j2.configurationFile=file:own.properties"
    assert settings(**{session.JAVA_OPTIONS: own})[session.JAVA_OPTIONS] == own


def test_only_local_masters_keep_to_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert settings()["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings("spark://host:7077")


def test_a_failed_fetch_is_one_line_that_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(jars.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "coordinates", lambda: "io.delta:there-is-no-such-thing:0")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    with pytest.raises(ConfigError) as caught:
        jars.resolve()
    assert "\n" not in str(caught.value)
    assert "io.delta:there-is-no-such-thing:0" in str(caught.value)
    assert jars.FOLDER_VARIABLE in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.jar"))
