"""``sim import FILE --out GRAPH.json.gz``: a model in a known format, as a graph file."""

from __future__ import annotations

import typer


def import_(
    file: str,
    out: str,
    batch: int | None = None,
    format: str | None = None,
    options: list[str] | None = None,
    note: str | None = None,
) -> None:
    """Convert a model to a graph file; a scenario uses it with `workload: {graph: FILE}`.

    Parameters
    ----------
    file : FILE
        The model; its format is detected from its content.
    out : --out FILE
        Where to write the graph (.json, .json.gz).
    batch : --batch >= 1
        Batch size; default: the model's own.
    format : --format NAME
        The format, if it cannot be detected.
    options : --set KEY=VALUE
        An option of the importer, such as dtype=bf16.
    note : --note
        The source and licence of the model, kept in the file.
    """
    from scenarios.cli.running import progress
    from scenarios.file.document import key_and_value
    from scenarios.importers import check_importer, convert
    from sim.base.errors import InputError, in_file
    from sim.base.units import format_count

    values = dict(key_and_value(option, "--set", "dtype=bf16") for option in options or ())
    if "batch" in values:
        raise InputError(f"--set batch={values['batch']}: give --batch {values['batch']}")
    if format is not None:
        with in_file(f"--format {format}"):
            check_importer(format)
    with progress(f"importing {file}"):
        done = convert(file, out, batch=batch, format=format, note=note, **values)
    batches = f"at batch {done.batch}" if done.batch is not None else "at its own batch"
    if done.fixed_because is None:
        batches += ", readable at any"
    typer.echo(f"{out}: {format_count(len(done.graph), 'op')}, {batches}")
    if done.fixed_because is not None:
        typer.echo(f"readable at this batch only: {done.fixed_because}", err=True)
