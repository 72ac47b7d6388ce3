"""Settings of one installation: environment (STOKER_*), then HOME/stoker.toml, then defaults."""

import os
import re
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
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
from app.suggest import closest, did_you_mean
from stoker.address import DEFAULT_HOME

# Read by stoker.address: how a client finds a service that is elsewhere.
CLIENT_NAMES = {"URL", "TOKEN"}
# What Kubernetes tells each container of every service, here of those named stoker or stoker-….
KUBERNETES_NAME = re.compile(
    r"STOKER_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_\w+)", re.ASCII
)
KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.+")
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


class Settings(BaseSettings):
    """Every setting; the name in the environment is the field's in capitals after STOKER_."""

    model_config = SettingsConfigDict(env_prefix="STOKER_", extra="forbid", frozen=True)

    home: Path = Field(
        default=DEFAULT_HOME,
        validate_default=True,
        description="Database, token, artifacts, caches, stoker.toml.",
    )
    database_url: str = Field(
        default_factory=lambda given: f"sqlite:///{given['home'] / 'stoker.db'}",
        description="SQLAlchemy URL; default SQLite in HOME.",
    )
    data_root: Path = Field(
        default_factory=lambda given: given["home"] / "data",
        description="Where datasets lie; default HOME/data.",
    )
    artifact_root: Path = Field(
        default_factory=lambda given: given["home"] / "artifacts",
        description="Checkpoints; default HOME/artifacts.",
    )
    host: str = Field(default="127.0.0.1", description="Address the API binds.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the API; 0 = a free one.")
    exporter_host: str = Field(default="127.0.0.1", description="Address of the worker's exporter.")
    exporter_port: int = Field(default=8001, ge=0, le=65535, description="Its port; 0 = free.")
    auth: Literal["token", "none"] = Field(default="token", description="none only on loopback.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Host names the API answers to, besides loopback and HOST."
    )
    guard: Literal["enforce", "warn"] = Field(
        default="enforce", description="warn: speed rules only warn."
    )
    slots: int | None = Field(
        default=None, ge=1, le=256, description="Runs at once; default: GPUs."
    )
    standby: int = Field(
        default=1, ge=0, le=16, description="Trainers started ahead, which wait for a run."
    )
    share_gpus: bool = Field(
        default=False, description="Take runs beside what others compute on a GPU."
    )
    beat_seconds: float = Field(default=2.0, ge=0.05, le=60, description="Seconds between beats.")
    stop_grace_seconds: float = Field(
        default=60.0, ge=0, le=3600, description="Seconds from SIGTERM to SIGKILL."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
    )
    access_log: bool = Field(default=False, description="A log line for each request.")

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
        file = TomlConfigSettingsSource(settings_cls, Path(home).expanduser() / "stoker.toml")
        return init_settings, _Environment(settings_cls), file

    @field_validator("allowed_hosts", mode="before")
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

    @field_validator("home", "data_root", "artifact_root")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

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
    def presets_dir(self) -> Path:
        return self.home / "presets"


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
