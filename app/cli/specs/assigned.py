"""Findings about what `--set` said: that value is meant, so the fix is another --set."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from app.cli.specs.specfile import Document, assign, parse_assignment, patch_of


def with_own_fixes(
    issues: list[Document], request: Document, assignments: list[str]
) -> list[Document]:
    """The findings of the service, which cannot tell a --set from the file; of a --set with a name
    that nobody knows, the fix is one with the name that was meant, also where the file has that.
    """
    if not assignments or all(issue["code"] != "unknown_field" for issue in issues):
        return issues
    fixes = dict(_renamed(request, assignments))
    return [
        {**issue, "fix": fixes[place]}
        if issue["code"] == "unknown_field" and (place := tuple(issue["loc"])) in fixes
        else issue
        for issue in issues
    ]


def _renamed(
    request: Document, assignments: list[str]
) -> Iterator[tuple[tuple[str, ...], list[Document]]]:
    """By the place of a --set, the change that its value makes under the name that was meant."""
    # Imported late: pydantic, and only for what was refused.
    from app.spec.layers import with_default_kinds
    from app.spec.parse import parse_spec

    whole = with_default_kinds(request)
    _, wrong = parse_spec(whole, patch_of(assignments))
    meant = {tuple(issue.loc): issue.fix[-1] for issue in wrong if len(issue.fix) > 1}
    for assignment in assignments:
        place = tuple(parse_assignment(assignment)[0])
        if place in meant and _can_be(whole, meant[place].path, meant[place].value):
            yield place, [meant[place].model_dump(mode="json")]


def _can_be(document: Document, path: str, value: Any) -> bool:
    """Whether a spec takes the value there."""
    from app.spec.parse import parse_spec  # late, as above

    names, changed = path.strip("/").split("/"), deepcopy(document)
    assign(changed, names, value)
    return all(issue.loc != names for issue in parse_spec(changed)[1])
