"""Words that a part of a path may be: with any other, there is nothing at the path."""

from typing import get_args

from starlette.convertors import Convertor, register_url_convertor

from stoker.models.runs import BulkVerb, Verb, Which


class _OneOf(Convertor[str]):
    """One of the words of a Literal; Starlette's "custom convertor"."""

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def register() -> None:
    """Have routes know `{action:verb}`, `{action:bulk_verb}` and `{which:which}`."""
    for name, literal in (("verb", Verb), ("bulk_verb", BulkVerb), ("which", Which)):
        words = type(name, (_OneOf,), {"regex": "|".join(get_args(literal))})
        register_url_convertor(name, words())
