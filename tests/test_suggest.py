"""Did you mean …? It is asked in one way, of names that are like one another."""

import pytest

from app.suggest import LIKE, SURE, closest, did_you_mean
from tests.test_architecture import PRODUCT_FILES, ROOT


@pytest.mark.parametrize(
    ("name", "known", "likeness", "meant"),
    [
        ("stoped", ["queued", "stopped"], LIKE, "stopped"),
        ("Dry-Run", ["dry_run"], LIKE, "dry_run"),
        ("dry_run", ["Dry-Run"], LIKE, "Dry-Run"),
        ("wether", ["weather", "whether"], LIKE, "whether"),
        ("h200", ["h100"], LIKE, "h100"),
        ("sead", ["seed"], SURE, "seed"),
        ("sid", ["seed"], SURE, None),
        ("hidden", ["hidden_size", "hidden_layers", "num_layers"], SURE, None),
        ("hidden", ["hidden_size", "num_layers"], SURE, "hidden_size"),
        ("layers", ["hidden_size", "num_layers"], SURE, "num_layers"),
        ("xyzzy", ["queued", "stopped"], LIKE, None),
        ("", ["queued"], LIKE, None),
        ("queued", [], LIKE, None),
    ],
)
def test_the_name_that_is_most_like_it_is_meant(name, known, likeness, meant):
    assert closest(name, known, likeness) == meant


def test_the_question_stands_behind_a_sentence():
    assert "There is none." + did_you_mean("this") == "There is none. Did you mean this?"
    assert did_you_mean(None) == ""


def test_names_are_compared_in_one_place():
    users = [str(path) for path in PRODUCT_FILES if "get_close_m" in (ROOT / path).read_text()]
    assert users == ["app/suggest.py"]
