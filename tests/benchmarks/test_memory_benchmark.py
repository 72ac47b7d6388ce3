"""The specs whose plan of memory is measured: each recipe that is installed can be planned."""

import pytest

from app.spec.installed import RECIPES
from benchmarks.memory.memory_cases import MemoryCase, planned
from benchmarks.memory.recipe_cases import RECIPE_CASES

HERE = [case for case in RECIPE_CASES if case.recipe.get("kind", "sequence") in RECIPES]


@pytest.mark.parametrize("case", HERE, ids=[case.name for case in HERE])
def test_all_but_what_a_run_has_to_measure_is_planned(case: MemoryCase, tmp_path) -> None:
    path = case.data.write(tmp_path)
    plan = planned(case, path)
    assert plan["unknown"] == ["activations", "evaluation"]
    assert plan["host"]["items"]["weights"] > 0
    assert plan["host"]["least_bytes"] > plan["host"]["items"]["resident_data"] > 0


def test_every_recipe_of_stokers_own_has_one() -> None:
    assert {case.recipe.get("kind", "sequence") for case in HERE} >= set(RECIPES)
