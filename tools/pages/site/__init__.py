"""Pages that MkDocs builds in addition to those in docs/: `mkdocs.yml` names the hook."""
