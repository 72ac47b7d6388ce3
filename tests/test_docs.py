"""Documents that restate what the code says: they must say the same."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from app.spec.layers import leaves, overlay, with_default_kinds
from app.spec.parse import parse_spec
from app.spec.registered import Param, RegisteredScript
from app.spec.run import RunSpec
from app.spec.script import ScriptSpec
from docs import reference, spec
from docs.curves import Panel, draw
from docs.generate import DOCUMENT, redraw
from stoker.events import KINDS
from tests.guard.world import REQUEST
from tests.pages import blocks
from worker.agent.beat_report import HISTORY

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
    assert set(re.findall(r"\(#(.+?)\)", document)) <= anchors(document)


def test_every_field_of_a_script_is_listed():
    document = spec.OF_SCRIPTS.read_text()
    assert spec.write_scripts() == document, "run: python -m docs.spec"
    recipe = {"kind": "script", "argv": ("true",)}
    whole = ScriptSpec.model_validate({"recipe": recipe}).model_dump(mode="json")
    fields = {pointer.strip("/").replace("/", ".") for pointer in dict(leaves(whole))}
    fields |= {*RegisteredScript.model_fields, *Param.model_fields}
    assert not {name for name in fields if f"| `{name}` |" not in document}
    assert set(re.findall(r"\(#(.+?)\)", document)) <= anchors(document)


@pytest.mark.parametrize("name", reference.PAGES)
def test_pages_of_the_reference_say_what_the_code_says(name):
    written = (reference.FOLDER / name).read_text("utf-8")
    assert reference.PAGES[name]() == written, "run: python -m docs.reference"


def test_every_event_that_is_kept_is_listed():
    assert set(KINDS) > HISTORY


def test_every_dependency_has_its_line():
    text = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z][\w.,\- ]*) \| [^|]+ \| [^|]+ \|$", text, flags=re.MULTILINE)
    documented = [name for row in rows for name in row.split(", ") if row != "package"]
    assert sorted(documented) == sorted(declared_requirements())


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    """To a file that is there, and to a heading of it."""
    dead = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            if "://" in target:
                continue
            file = path.parent / target if target else path
            if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
                dead.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert not dead


def test_the_changelog_knows_the_version():
    version = re.search(r'__version__ = "(.+)"', (ROOT / "app/__init__.py").read_text())
    assert version is not None
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == version[1]


def test_curves_are_drawn_of_what_stoker_metrics_writes(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("name,step,t,value\nval_f1,20,…,0.9\nval_f1,10,…,0.5\nlr,10,…,0.001\n")
    panel = Panel.read(f"F1 <mean>|{path}|val_f1|0.25")
    picture = ElementTree.fromstring(draw([panel, panel]))  # noqa: S314 - drawn above
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:5] == ["F1 <mean>", "0.50", "0.90", "step 20", "best baseline 0.25"]
    (line, _) = picture.iter("{http://www.w3.org/2000/svg}polyline")
    (first, last) = (point.split(",") for point in line.attrib["points"].split())
    assert float(first[0]) < float(last[0])
    assert float(first[1]) > float(last[1]), "higher is further up"
    with pytest.raises(SystemExit, match="has no series val_loss"):
        Panel.read(f"loss|{path}|val_loss")


def test_what_the_page_on_training_shows_can_be_asked_for():
    """Of the recipe with a backbone; each block is a part of a spec."""
    text = (ROOT / "docs" / "guide" / "training.md").read_text("utf-8")
    shown = blocks("yaml", text)
    assert len(shown) == 10
    base = {
        "recipe": {"kind": "board", "stage": "play", "planes": 18},
        "data": {"dataset": "games"},
    }
    for block in shown:
        _, issues = parse_spec(overlay(base, with_default_kinds(YAML(typ="safe").load(block))))
        assert issues == []
