"""Commands that the administrator registers in stoker.toml, for whoever may submit over HTTP.

[scripts.finetune]
argv = ["/opt/env/bin/python", "train.py", "--lr", "{lr}"]
cwd = "/srv/finetune"
params.lr = {type = "float", default = 3e-4, ge = 1e-6, le = 0.1}
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from app.spec.script import (
    CHECKPOINT,
    PLACEHOLDER,
    Arguments,
    are_bounded,
    has_placeholder,
    is_signal,
    one_or_more,
    split_once,
)

TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


class Param(BaseModel):
    """A typed value that goes into the command line, as one argument or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    type: Literal["int", "float", "str", "bool"]
    """Of what type its values are."""
    default: bool | int | float | str | None = None
    """Its value where a request gives none; without it a request has to."""
    ge: float | None = None
    """The least value; default none."""
    le: float | None = None
    """The largest value; default none."""
    choices: tuple[int | float | str, ...] = ()
    """The values that there are; default any."""

    @property
    def python_type(self) -> Any:
        return TYPES[self.type]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.ge is not None or self.le is not None) and self.type not in ("int", "float"):
            raise ValueError("ge and le are for int and float")
        values = [*self.choices, *([] if self.default is None else [self.default])]
        wrong = [value for value in values if not self._is_of_type(value)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no {self.type}")
        return self

    def _is_of_type(self, value: Any) -> bool:
        if self.type == "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        return type(value) is self.python_type


class RegisteredScript(BaseModel):
    """One of them; `{name}` in `argv` stands for the value of a parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    argv: Annotated[Arguments, Field(min_length=1)]
    """The command and its arguments; {name} is the value of a parameter. No shell is involved."""
    cwd: str
    """The folder in which it runs."""
    params: dict[str, Param] = Field(default_factory=dict)
    """What a request may change, by name; default nothing."""
    resume: Annotated[Arguments, BeforeValidator(split_once), AfterValidator(has_placeholder)] = ()
    """Arguments that follow when there is a {checkpoint}, or its {step}, to go on from; default
    none."""
    checkpoints: Annotated[
        Arguments, BeforeValidator(one_or_more), AfterValidator(are_bounded)
    ] = ()
    """Patterns of the checkpoints that it writes, from its folder on; default none."""
    launch: Literal["auto", "none"] = "auto"
    """As recipe.launch; default auto."""
    shim: bool = True
    """Count optimizer steps and the wait for data from within; default true."""
    stop_signal: Annotated[str, AfterValidator(is_signal)] = "SIGTERM"
    """The signal that asks it to stop; default SIGTERM."""
    grace_seconds: Annotated[float, Field(ge=0.0, le=86_400.0)] = 300.0
    """Seconds from that signal to SIGKILL; default 300."""

    @model_validator(mode="after")
    def _names_its_params(self) -> Self:
        known = {f"{{{name}}}" for name in self.params} | {CHECKPOINT}
        named = {found for part in self.argv for found in PLACEHOLDER.findall(part)}
        if unknown := named - known:
            raise ValueError(f"{min(unknown)} in argv is no parameter")
        return self
