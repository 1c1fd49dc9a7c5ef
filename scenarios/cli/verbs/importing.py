"""``sim import FILE --out GRAPH.json.gz``: a model in a known format, as a graph file."""

from __future__ import annotations

import typer

from scenarios.cli.options import argument, option, settings


def import_(
    file: str = argument("FILE", "The model; its format is detected from its content."),
    out: str = option("--out GRAPH.json.gz", "Where to write the graph.", ...),
    batch: int | None = option("--batch", "Batch size; default: the model's own.", min=1),
    format: str | None = option("--format NAME", "The format, if it cannot be detected."),
    options: list[str] | None = settings("An option of the importer, such as dtype=bf16."),
    note: str | None = option("--note", "The source and licence of the model, kept in the file."),
) -> None:
    """Convert a model to a graph file; a scenario uses it with `workload: {graph: FILE}`."""
    from scenarios.cli.running import progress
    from scenarios.file.document import key_and_value
    from scenarios.importers import convert
    from scenarios.report.outputs import check_path
    from sim.base.errors import InputError

    check_path("out", out, (".json", ".json.gz"))
    values = dict(key_and_value(option, "--set", "dtype=bf16") for option in options or ())
    if "batch" in values:
        raise InputError(f"--set batch={values['batch']}: give --batch {values['batch']}")
    with progress(f"importing {file}"):
        done = convert(file, out, batch=batch, format=format, note=note, **values)
    batches = f"at batch {done.batch}" if done.batch is not None else "at its own batch"
    if done.fixed_because is None:
        batches += ", readable at any"
    typer.echo(f"{out}: {len(done.graph):,} ops, {batches}")
    if done.fixed_because is not None:
        typer.echo(f"readable at this batch only: {done.fixed_because}", err=True)
