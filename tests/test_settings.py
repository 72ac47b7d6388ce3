"""Settings: environment over file over default, and a sentence for each wrong one."""

import pytest

from app.settings import SettingsError, is_loopback, load_settings, split_notify_url


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    return tmp_path


def test_everything_lies_under_home_by_default(tmp_path):
    settings = load_settings(home=tmp_path / "h")
    assert settings.data_root == tmp_path / "h" / "data"
    assert settings.artifact_root == tmp_path / "h" / "artifacts"
    assert settings.database_url == f"sqlite:///{tmp_path / 'h' / 'stoker.db'}"


def test_environment_goes_before_the_file(tmp_path, monkeypatch):
    (tmp_path / "stoker.toml").write_text('port = 1234\nlog_level = "debug"\n')
    monkeypatch.setenv("STOKER_PORT", "4321")
    settings = load_settings()
    assert (settings.port, settings.log_level) == (4321, "debug")


def test_the_file_lies_in_the_home_that_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "stoker.toml").write_text("port = 7\n")
    assert load_settings(home=tmp_path / "other").port == 7
    monkeypatch.chdir(tmp_path / "other")
    assert load_settings().port == 8000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "cannot be read"),
        ("prot = 1", r"stoker\.toml: there is no setting prot\. Did you mean port\?"),
        ("hom = 1\nxyzzy = 2", r"no setting hom\. .* no setting xyzzy\.$"),
        ("port = 'x'", "STOKER_PORT"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path, text, words):
    (tmp_path / "stoker.toml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings()


def test_a_default_may_be_said_and_a_relative_root_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_STANDBY", "1")
    monkeypatch.setenv("STOKER_DATA_ROOT", ".")
    monkeypatch.chdir(tmp_path)
    assert load_settings().data_root == tmp_path


def test_hosts_are_given_with_commas(monkeypatch):
    monkeypatch.setenv("STOKER_ALLOWED_HOSTS", "gpu.example, box")
    assert load_settings().allowed_hosts == ("gpu.example", "box")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PORT", "99999", "less than or equal"),
        ("BEAT_SECONDS", "0", "greater than"),
        ("STANDBY", "-1", "greater than"),
        ("PROT", "1", r"is not a setting\. Did you mean STOKER_PORT\?"),
        ("TOKN", "1", r"is not a setting\. Did you mean STOKER_TOKEN\?"),
        ("XYZZY", "1", r"is not a setting\.$"),
        ("AUTH", "maybe", "token"),
        ("ARTIFACT_ROOT", "s3://bucket", "not available yet"),
        ("HOST", "a..b", "no host name"),
        ("HOST", "", "no host name"),
        ("EXPORTER_HOST", "x" * 64, "no host name"),
        ("NOTIFY_URL", "https://a..b/topic", "give a URL"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch, name, value, words):
    monkeypatch.setenv(f"STOKER_{name}", value)
    with pytest.raises(SettingsError, match=f"STOKER_{name}.*{words}"):
        load_settings()


def test_no_token_is_only_for_this_machine():
    assert load_settings(auth="none").auth == "none"
    with pytest.raises(SettingsError, match="without a token"):
        load_settings(auth="none", host="0.0.0.0")


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.5.5.5", True),
     ("0.0.0.0", False), ("192.168.1.2", False), ("gpu-box", False)],
)  # fmt: skip
def test_loopback(host, here):
    assert is_loopback(host) is here


@pytest.mark.parametrize("service", ["STOKER", "STOKER_API", "STOKER_EXPORTER"])
def test_what_kubernetes_tells_of_services_is_passed_over(monkeypatch, tmp_path, service):
    (tmp_path / "stoker.toml").write_text("port = 1234\nexporter_port = 1235\n")
    for name, value in {
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_HTTP": "8000",
        "PORT": "tcp://10.0.0.7:8000",
        "PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "PORT_8000_TCP_PROTO": "tcp",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_ADDR": "10.0.0.7",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    settings = load_settings()
    assert (settings.host, settings.port, settings.exporter_port) == ("127.0.0.1", 1234, 1235)


@pytest.mark.parametrize("name", ["STOKER_HOSTS", "STOKER_API_PORT", "STOKER_PORT_NUMBER"])
def test_what_only_looks_like_it_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "8000")
    with pytest.raises(SettingsError, match=f"{name} is not a setting"):
        load_settings()


@pytest.mark.parametrize(
    ("url", "form", "address"),
    [
        ("https://ntfy.sh/x", None, "https://ntfy.sh/x"),
        ("ntfy+http://10.0.0.5:8080/runs", "ntfy", "http://10.0.0.5:8080/runs"),
        ("json+https://u:p@[::1]/", "json", "https://u:p@[::1]/"),
    ],
)
def test_an_address_to_notify_may_name_its_form(monkeypatch, url, form, address):
    monkeypatch.setenv("STOKER_NOTIFY_URL", url)
    monkeypatch.setenv("STOKER_NOTIFY_ON", "failed, stalled")
    settings = load_settings()
    assert settings.notify_url == url
    assert split_notify_url(url) == (form, address)
    assert settings.notify_on == ("failed", "stalled")
    assert url not in repr(settings), "it may hold a token"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("URL", "ntfy.sh/secret-topic", "give a URL such as https://ntfy.sh/my-topic"),
        ("URL", "mail+https://secret-topic", "one of the forms ntfy, slack, discord, json"),
        ("URL", "https://", "give a URL"),
        ("SECRET", "secret-topic", "fewer than 16 characters"),
        ("ON", "failed,ended", "'ended' should be 'succeeded', 'failed', 'stopped' or 'stalled'"),
    ],
)
def test_what_nobody_could_be_notified_by_is_a_sentence(monkeypatch, name, value, words):
    monkeypatch.setenv(f"STOKER_NOTIFY_{name}", value)
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings()
    assert "secret-topic" not in str(caught.value)
