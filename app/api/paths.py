"""Words that a part of a path may be: with any other, there is nothing at the path."""

from typing import get_args

from starlette.convertors import StringConvertor, register_url_convertor

from stoker.models.runs import BulkVerb, Verb, Which


class _Verb(StringConvertor):
    regex = "|".join(get_args(Verb))


class _BulkVerb(StringConvertor):
    regex = "|".join(get_args(BulkVerb))


class _Which(StringConvertor):
    regex = "|".join(get_args(Which))


def register() -> None:
    """Have routes know `{action:verb}`, `{action:bulk_verb}` and `{which:which}`."""
    register_url_convertor("verb", _Verb())
    register_url_convertor("bulk_verb", _BulkVerb())
    register_url_convertor("which", _Which())
