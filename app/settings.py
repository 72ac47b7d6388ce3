"""Settings of one installation: environment (STOKER_*), then HOME/stoker.toml, then defaults."""

import os
import re
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.errors import InvalidRequest
from app.spec.registered import RegisteredScript
from app.suggest import closest, did_you_mean
from stoker.address import DEFAULT_HOME, is_host

# Read by stoker.address: how a client finds a service that is elsewhere.
CLIENT_NAMES = {"URL", "TOKEN"}
# What Kubernetes tells each container of every service, here of those named stoker or stoker-….
KUBERNETES_NAME = re.compile(
    r"STOKER_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_\w+)", re.ASCII
)
KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.+")
# How messages are put for whoever is told how runs end, see app/service/notify.py.
NOTIFY_FORMS = ("ntfy", "slack", "discord", "json")
NOTIFY_URL = re.compile(rf"(?:({'|'.join(NOTIFY_FORMS)})\+)?(https?://\S+)")
NotifyEvent = Literal["succeeded", "failed", "stopped", "stalled"]
NOTIFY_EVENTS: tuple[NotifyEvent, ...] = get_args(NotifyEvent)
LEAST_SECRET_LENGTH = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


class SettingsError(InvalidRequest):
    code, title = "invalid_settings", "A setting is not valid"


class _Environment(EnvSettingsSource):
    """The environment without STOKER_PORT=tcp://…, which Kubernetes makes of a service `stoker`."""

    def __call__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__call__().items()
            if not _is_of_kubernetes(f"STOKER_{name.upper()}", str(value))
        }


class _File(TomlConfigSettingsSource):
    """stoker.toml, in which the tables [scripts.NAME] are what SCRIPTS lets run."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        if isinstance(values.get("scripts"), dict):
            values["registered_scripts"] = values.pop("scripts")
        return values


class Settings(BaseSettings):
    """Every setting; the name in the environment is the field's in capitals after STOKER_."""

    model_config = SettingsConfigDict(env_prefix="STOKER_", extra="forbid", frozen=True)

    home: Path = Field(
        default=DEFAULT_HOME,
        validate_default=True,
        description="Database, `token`, artifacts, logs, `stoker.toml`, your presets.",
    )
    database_url: str = Field(
        default_factory=lambda given: f"sqlite:///{given['home'] / 'stoker.db'}",
        description="Or `postgresql+psycopg://…`.",
    )
    data_root: Path = Field(
        default_factory=lambda given: given["home"] / "data",
        description="Where datasets lie; nothing outside is read.",
    )
    artifact_root: Path = Field(
        default_factory=lambda given: given["home"] / "artifacts",
        description="Checkpoints and the folders of attempts.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the API binds.")
    port: int = Field(
        default=8000,
        ge=0,
        le=65535,
        description="Port of the API; 0 is a free one, written to HOME/api.json.",
    )
    exporter_host: str = Field(
        default="127.0.0.1", description="Address of the worker's Prometheus metrics."
    )
    exporter_port: int = Field(
        default=8001, ge=0, le=65535, description="Their port; 0 is a free one."
    )
    auth: Literal["token", "none"] = Field(
        default="token", description="`none` only on a loopback address."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Host names, with commas, that the API answers to besides loopback and HOST.",
    )
    guard: Literal["enforce", "warn"] = Field(
        default="enforce",
        description="`warn`: errors of the rules about speed become warnings.",
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Runs at once; by default one for each GPU, and one that needs no GPU.",
    )
    data_cache_bytes: ByteSize = Field(
        default=ByteSize(10 * 2**30),
        ge=0,
        description="Most disk space for what recipes prepare (`stoker data cache`); 0 keeps none.",
    )
    standby: int = Field(
        default=1,
        ge=0,
        le=16,
        description="Trainers started ahead, so that a run begins in a tenth of a second, not in "
        "two; each takes 245 MiB, with a CUDA build of PyTorch 527.",
    )
    scripts: Literal["local", "registered", "off"] = Field(
        default="local",
        description="Which commands may run: `local`, registered ones and those that the worker's "
        "own user starts with `stoker run`; `registered`, these alone; `off`, none.",
    )
    registered_scripts: dict[str, RegisteredScript] = Field(
        default_factory=dict,
        description="Commands that may be run over HTTP: tables `[scripts.NAME]` in stoker.toml.",
    )
    notify_url: str | None = Field(
        default=None,
        repr=False,
        description="Where you are told how runs end: an address of ntfy, Slack or Discord, or any "
        "other, which gets JSON.",
    )
    notify_secret: SecretStr | None = Field(
        default=None, description="Signs that JSON by HMAC-SHA256; 16 characters or more."
    )
    notify_on: Annotated[tuple[NotifyEvent, ...], NoDecode] = Field(
        default=NOTIFY_EVENTS, description="What you are told of."
    )
    share_gpus: bool = Field(
        default=False,
        description="Start a run also while another program computes on the GPU; else its slot "
        "waits, and says for which.",
    )
    beat_seconds: float = Field(
        default=2.0, ge=0.05, le=60, description="Seconds between two reports of the worker."
    )
    stop_grace_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="Seconds from SIGTERM to SIGKILL; of scripts see --grace.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
    )
    access_log: bool = Field(
        default=False, description="Write a log line for each request to the API."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        home = init_settings().get("home") or env_settings().get("home") or DEFAULT_HOME
        file = _File(settings_cls, Path(home).expanduser() / "stoker.toml")
        return init_settings, _Environment(settings_cls), file

    @field_validator("allowed_hosts", "notify_on", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("artifact_root", mode="before")
    @classmethod
    def _local_folder_only(cls, value: Any) -> Any:
        if "://" in str(value):
            raise ValueError("remote artifact roots are not available yet; give a local folder")
        return value

    @field_validator("notify_url")
    @classmethod
    def _is_of_http(cls, value: str | None) -> str | None:
        if value is not None:
            split_notify_url(value)
        return value

    @field_validator("notify_secret")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < LEAST_SECRET_LENGTH:
            raise ValueError(
                f"it has fewer than {LEAST_SECRET_LENGTH} characters and could be guessed; make "
                "one by: openssl rand -base64 32"
            )
        return value

    @field_validator("host", "exporter_host")
    @classmethod
    def _can_be_looked_up(cls, value: str) -> str:
        if not is_host(value):
            raise ValueError(
                f"{value[:100]!r} is no address and no host name: between the dots of a name are "
                "1 to 63 letters, digits and dashes"
            )
        return value

    @field_validator("home", "data_root", "artifact_root")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _absolute_file(cls, value: str) -> str:
        """The same file for all processes, whatever folder they are started in."""
        file = value.removeprefix("sqlite:///")
        if file in (value, "") or file.startswith(("/", ":memory:")):
            return value
        return f"sqlite:///{Path(file).absolute()}"

    @model_validator(mode="after")
    def _token_unless_loopback(self) -> Self:
        if self.auth == "none" and not is_loopback(self.host):
            raise ValueError(
                f"AUTH=none with HOST={self.host}: without a token anybody who reaches this "
                "address could start code on your GPU; bind 127.0.0.1 or use AUTH=token"
            )
        return self

    @property
    def token_path(self) -> Path:
        return self.home / "token"

    @property
    def bells_dir(self) -> Path:
        return self.home / "bells"

    @property
    def locks_dir(self) -> Path:
        return self.home / "locks"

    @property
    def sockets_dir(self) -> Path:
        """Where the agents listen for commands of this user: 0700."""
        return self.home / "sockets"

    @property
    def environments_dir(self) -> Path:
        """What submitters of commands had in their environments: 0700."""
        return self.home / "environments"

    @property
    def snapshots_dir(self) -> Path:
        """The code of commands as it was submitted, where that was asked for: 0700."""
        return self.home / "snapshots"

    @property
    def presets_dir(self) -> Path:
        return self.home / "presets"


def split_notify_url(text: str) -> tuple[str | None, str]:
    """The form that stands before the URL, as in ntfy+http://…, or None; the URL. ValueError."""
    match = NOTIFY_URL.fullmatch(text)
    if match is None or not is_host(urlsplit(match[2]).hostname or ""):
        raise ValueError(
            "give a URL such as https://ntfy.sh/my-topic; one of the forms "
            f"{', '.join(NOTIFY_FORMS)} may stand before it, as in ntfy+http://10.0.0.5/runs"
        )
    return match[1], match[2]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; a wrong one raises SettingsError with a sentence for each.

    A value given in `overrides` (None: not given) goes before the environment.
    """
    _refuse_unknown_names()
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = [_sentence(item) for item in error.errors()]
        raise SettingsError(" ".join(lines)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"stoker.toml in HOME cannot be read: {error}") from None


def _sentence(details: ErrorDetails) -> str:
    name = "_".join(str(part) for part in details["loc"]).upper() or "SETTINGS"
    if details["type"] == "extra_forbidden":
        meant = did_you_mean(closest(name, Settings.model_fields))
        return f"stoker.toml: there is no setting {name.lower()}.{meant}"
    said = details["msg"].removeprefix("Value error, ").rstrip(".")
    if said.startswith("Input should be "):
        wanted = said.removeprefix("Input should be ").partition(", unable")[0]
        wanted = wanted.replace("valid integer", "whole number").replace("valid number", "number")
        said = f"{details['input']!r} should be {wanted}"
    return f"STOKER_{name}: {said}."


def _refuse_unknown_names() -> None:
    """A misspelt setting would be ignored, and the service would not do what it was told."""
    known = {name.upper() for name in Settings.model_fields} | CLIENT_NAMES
    given = [
        name.upper().removeprefix("STOKER_")
        for name, value in os.environ.items()
        if _is_ours(name) and not _is_of_kubernetes(name, value)
    ]
    unknown = [
        f"STOKER_{name} is not a setting.{_meant(name, known)}"
        for name in given
        if name not in known
    ]
    if unknown:
        raise SettingsError(" ".join(unknown))


def _meant(name: str, known: set[str]) -> str:
    meant = closest(name, sorted(known))
    return did_you_mean(meant and f"STOKER_{meant}")


def _is_of_kubernetes(name: str, value: str) -> bool:
    is_port = name.endswith("_PORT") and KUBERNETES_PORT.fullmatch(value) is not None
    return is_port or KUBERNETES_NAME.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return name.upper().startswith("STOKER_")
