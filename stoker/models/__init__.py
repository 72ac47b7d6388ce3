"""What the service says and is told, as models: `models.Run.model_validate(client.run(7))`."""

from typing import TYPE_CHECKING

from stoker.lazy import lazily

if TYPE_CHECKING:
    from stoker.models.base import Answer, Body, Page, Time
    from stoker.models.issue import Issue, PatchOp
    from stoker.models.records import (
        Attempt,
        BrokenPreset,
        Checkpoint,
        Dataset,
        DatasetBody,
        DatasetField,
        DatasetLayout,
        DatasetRoles,
        Edges,
        Event,
        EventPage,
        FieldParts,
        Health,
        LabelClass,
        Lengths,
        LogPiece,
        Neighbours,
        NotAPart,
        Preset,
        PresetPage,
        Readiness,
        Recipe,
        Series,
        Version,
        Worker,
    )
    from stoker.models.rules import (
        ByConstruction,
        EarlyCode,
        Rule,
        RuleExample,
        RulePage,
        RulesToCome,
        Severity,
    )
    from stoker.models.runs import (
        BaselineScore,
        BulkAnswer,
        BulkBody,
        BulkFilter,
        BulkResult,
        Carry,
        Code,
        CommandProfile,
        Difference,
        Environment,
        Memory,
        PatchOperation,
        Plan,
        Progress,
        QueueMove,
        RanCode,
        RestartBody,
        Result,
        Run,
        RunChanges,
        RunDocuments,
        StateName,
        Status,
        Unchecked,
        Verb,
    )
    from stoker.models.weights import (
        Export,
        ExportBody,
        ExportedTensor,
        ExportFacts,
        ImportBody,
        Job,
        MeasuredModel,
    )

__all__ = [
    "Answer", "Attempt", "BaselineScore", "Body", "BrokenPreset", "BulkAnswer", "BulkBody",
    "BulkFilter", "BulkResult", "ByConstruction", "Carry", "Checkpoint", "Code", "CommandProfile",
    "Dataset", "DatasetBody", "DatasetField", "DatasetLayout", "DatasetRoles", "Difference",
    "EarlyCode", "Edges", "Environment", "Event", "EventPage", "Export", "ExportBody",
    "ExportFacts", "ExportedTensor", "FieldParts", "Health", "ImportBody", "Issue", "Job",
    "LabelClass", "Lengths", "LogPiece", "MeasuredModel", "Memory", "Neighbours", "NotAPart",
    "Page", "PatchOp", "PatchOperation", "Plan", "Preset", "PresetPage", "Progress", "QueueMove",
    "RanCode", "Readiness", "Recipe", "RestartBody", "Result", "Rule", "RuleExample", "RulePage",
    "RulesToCome", "Run", "RunChanges", "RunDocuments", "Series", "Severity", "StateName", "Status",
    "Time", "Unchecked", "Verb", "Version", "Worker",
]  # fmt: skip

# Late: pydantic takes a while for all of them, and most who import one need no others.
_MODULES = ["base", "issue", "rules", "records", "runs", "weights"]
__getattr__ = lazily(__name__, _MODULES, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *__all__})
