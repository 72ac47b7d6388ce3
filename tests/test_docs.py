"""Documents that restate what the code says: they must say the same."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from app.spec.layers import leaves
from app.spec.run import RunSpec
from docs import spec
from docs.generate import DOCUMENT, redraw
from tests.guard.world import REQUEST

ROOT = Path(__file__).parents[1]


def declared_requirements() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return {Requirement(line).name for line in lines}


def test_the_pictures_are_drawn_from_the_code():
    document = DOCUMENT.read_text()
    assert redraw(document) == document, "run: python -m docs.generate"


def test_every_field_of_a_spec_is_listed_and_each_link_leads_to_its_block():
    document = spec.DOCUMENT.read_text()
    assert spec.write_document() == document, "run: python -m docs.spec"
    whole = RunSpec.model_validate(REQUEST).model_dump(mode="json")
    fields = {pointer.strip("/").replace("/", ".") for pointer in dict(leaves(whole))}
    missing = {name for name in fields if f"| `{name}` |" not in document}
    assert not missing
    headings = re.findall(r"^## (.+)$", document, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#(.+?)\)", document)) <= anchors


def test_every_dependency_has_its_line():
    text = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z][\w.,\- ]*) \| [^|]+ \| [^|]+ \|$", text, flags=re.MULTILINE)
    documented = [name for row in rows for name in row.split(", ") if row != "package"]
    assert sorted(documented) == sorted(declared_requirements())


def test_links_between_documents_lead_somewhere():
    dead = [
        f"{path.name}: {target}"
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not dead


def test_the_changelog_knows_the_version():
    version = re.search(r'__version__ = "(.+)"', (ROOT / "app/__init__.py").read_text())
    assert version is not None
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == version[1]
