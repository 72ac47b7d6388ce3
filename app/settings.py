"""Settings of one installation: environment (STOKER_*), then `stoker.toml`, then defaults."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.errors import InvalidRequest

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


class SettingsError(InvalidRequest):
    code, title = "invalid_settings", "A setting is not valid"


class Settings(BaseSettings):
    """Every setting; the name in the environment is the field's in capitals after STOKER_."""

    model_config = SettingsConfigDict(
        env_prefix="STOKER_", toml_file="stoker.toml", extra="forbid", frozen=True
    )

    home: Path = Field(default=Path("~/.stoker"), description="Database, token, artifacts, caches.")
    database_url: str = Field(default="", description="SQLAlchemy URL; default SQLite in HOME.")
    data_root: Path = Field(default=Path(), description="Where datasets lie; default HOME/data.")
    artifact_root: Path = Field(default=Path(), description="Checkpoints; default HOME/artifacts.")
    host: str = Field(default="127.0.0.1", description="Address the API binds.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the API; 0 = a free one.")
    exporter_host: str = Field(default="127.0.0.1", description="Address of the worker's exporter.")
    exporter_port: int = Field(default=8001, ge=0, le=65535, description="Its port; 0 = free.")
    auth: Literal["token", "none"] = Field(default="token", description="none only on loopback.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Host names the API answers to, besides loopback and HOST."
    )
    guard: Literal["enforce", "warn"] = Field(default="enforce", description="For speed rules.")
    slots: int | None = Field(
        default=None, ge=1, le=256, description="Runs at once; default: GPUs."
    )
    standby: Literal[0] = Field(default=0, description="Warm trainers; more than 0 comes later.")
    beat_seconds: float = Field(default=2.0, ge=0.05, le=60, description="Seconds between beats.")
    stop_grace_seconds: float = Field(
        default=60.0, ge=0, le=3600, description="Seconds from SIGTERM to SIGKILL."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

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

    @model_validator(mode="after")
    def _derive(self) -> Self:
        home = self.home.expanduser().absolute()
        derived: dict[str, Any] = {
            "home": home,
            "data_root": _or_default(self.data_root, home / "data"),
            "artifact_root": _or_default(self.artifact_root, home / "artifacts"),
            "database_url": self.database_url or f"sqlite:///{home / 'stoker.db'}",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # frozen for everybody else
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


def _or_default(given: Path, default: Path) -> Path:
    return default if given == Path() else given.expanduser().absolute()


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
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = [
            f"STOKER_{'_'.join(str(part) for part in item['loc']).upper() or 'SETTINGS'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise SettingsError("; ".join(lines)) from None
