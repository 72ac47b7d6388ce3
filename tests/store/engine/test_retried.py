"""Every method of the store that writes is tried again when the database broke it off."""

import ast
from pathlib import Path

import app.store

FOLDER = Path(app.store.__file__).parent


def writing_methods() -> list[tuple[str, set[str]]]:
    """Each method whose body begins a writing transaction, with its decorators."""
    return [
        (
            f"{path.stem}.{method.name}",
            {one.id for one in method.decorator_list if isinstance(one, ast.Name)},
        )
        for path in sorted(FOLDER.rglob("*.py"))
        for owner in ast.walk(ast.parse(path.read_text()))
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and "_database.write(" in ast.unparse(method)
    ]


def test_all_of_them_are_marked() -> None:
    found = writing_methods()
    assert len(found) > 20
    assert [name for name, decorators in found if "retried" not in decorators] == []
