"""What MkDocs builds besides the pages in docs/: `mkdocs.yml` names the hook."""
