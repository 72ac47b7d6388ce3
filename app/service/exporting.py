"""A checkpoint for use elsewhere: asked for, once it is clear that there is something to export."""

from app.errors import InvalidRequest
from app.service.checkpoint_files import whole_files
from app.service.services import Services
from app.spec.imported import IMPORTED
from app.spec.script import SCRIPT
from app.store.weights.export_rows import Format
from app.store.worker_records import JobRecord


def order_export(services: Services, checkpoint_id: int, format_: Format) -> JobRecord:
    """The job that makes it. NotFound, Conflict where it is damaged, InvalidRequest for a script's;
    Unavailable while the artifact root is away.
    """
    record = services.store.checkpoints.get(checkpoint_id)
    recipe = services.store.runs.get(record.run_id).recipe
    if recipe == IMPORTED:
        raise InvalidRequest(
            f"Checkpoint {checkpoint_id} was imported: it has weights and no model, so there is "
            "nothing to export. Export a run that begins with it.",
            code="not_exportable",
        )
    if recipe == SCRIPT:
        raise InvalidRequest(
            f"Checkpoint {checkpoint_id} was saved by the script of run {record.run_id}, and what "
            "is in it is known to the script alone. Download it: `stoker download "
            f"{record.run_id} --checkpoint {checkpoint_id}`.",
            code="not_exportable",
        )
    whole_files(services, record)
    return services.store.exports.order(checkpoint_id, format_)
