"""Page of other systems' names, generated from the table that the commands read."""

from collections.abc import Iterator

from gpt2train.foreign.table import Row, System, systems

PAGE = "coming-from/names.md"


def page() -> str:
    """Markdown of the generated sections: a table of names for each system."""
    return "\n".join(line for system in systems().values() for line in _section(system))


def _section(system: System) -> Iterator[str]:
    yield f"## {system.title}\n"
    if f"{system.page}.md" != PAGE:
        yield f"[The whole way]({system.page.rpartition('/')[2]}.md)\n"
    if system.like:
        yield f"And the names of {systems()[system.like].title}.\n"
    yield "| theirs | here |\n|---|---|"
    for name, row in system.names.items():
        yield f"| `{name}` | {_here(row)} |"
    yield ""


def _here(row: Row) -> str:
    value = "" if row.value is None else f" = {str(row.value).lower()}"
    targets = [f"`{target}{value}`" if not target.startswith("--") else _option(target) for target in row.to]
    values = [f"`{theirs}` is `{str(ours).lower()}`" for theirs, ours in (row.values or {}).items()]
    return "; ".join(filter(None, [", ".join(targets), ", ".join(values), row.why.replace("|", "\\|")]))


def _option(target: str) -> str:
    option, _, command = target.partition(" of ")
    return f"`{option}` of `{command}`"
