"""Self-contained HTML documentation of the API, rendered from its OpenAPI description."""

import json
from typing import Any

from jinja2 import Environment

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ info.title }}: API</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 code { font-size: 1.1em } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
small { color: color-mix(in srgb, currentColor 70%, transparent) }
</style>
<h1>{{ info.title }} {{ info.version }}</h1>
<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>
{% for route in routes %}
<h2><code>{{ route.methods }} {{ route.path }}</code></h2>
<p>{{ route.about }}</p>
{% if route.fields %}<table><tr><th>field<th>description<th>default</tr>
{% for field in route.fields %}<tr><td><code>{{ field.name }}</code>{% if field.bounds %}
<br><small>{{ field.bounds }}</small>{% endif %}
<td>{{ field.about }}<td>{{ field.default }}</tr>
{% endfor %}</table>{% endif %}
{% endfor %}
</html>
"""
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def render_docs(openapi: dict[str, Any]) -> str:
    """Render the page; methods of a path with equal fields share one section."""
    routes: list[dict[str, Any]] = []
    for path, methods in openapi["paths"].items():
        for method, route in methods.items():
            found = {
                "path": path,
                "methods": method.upper(),
                "about": route.get("description", ""),
                "fields": _fields(openapi, route),
            }
            same = [other for other in routes if other["path"] == path and other["fields"] == found["fields"]]
            if same:
                same[0]["methods"] += f", {found['methods']}"
            else:
                routes.append(found)
    return Environment(autoescape=True).from_string(PAGE).render(info=openapi["info"], routes=routes)


def _fields(openapi: dict[str, Any], route: dict[str, Any]) -> list[dict[str, str]]:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" not in body:
        return []
    schema = openapi["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "about": field.get("description", ""),
            "bounds": _bounds(field),
            "default": "required" if name in required else _default(field.get("default")),
        }
        for name, field in schema["properties"].items()
    ]


def _default(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _bounds(field: dict[str, Any]) -> str:
    kinds = [field, *field.get("anyOf", [])]
    return ", ".join(f"{sign} {kind[key]:g}" for kind in kinds for key, sign in BOUNDS.items() if key in kind)
