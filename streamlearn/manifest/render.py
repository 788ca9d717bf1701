"""Rendering of templates: to objects, for values; or to the Go templates of a Helm chart, for those to come."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from streamlearn.errors import UsageError
from streamlearn.manifest.template import AppToml, Each, Hash, Part, Refuse, Splice, Sum, Test, Value, When

__all__ = ["helm_parts", "helm_text", "render"]

_PLACE = re.compile(r"@([a-z_.]+)@")
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
_NOT_PLAIN = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_FLOW_COLUMNS_MAX = 150
_NODES = (AppToml, Each, Hash, Part, Refuse, Splice, When)
_ABSENT = object()


def render(files: Mapping[str, list[Any]], values: Mapping[str, Any], name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the objects of each file, for these values and this name of the installation.

    Raises:
        UsageError: The values contradict each other, or lack one that is needed.
    """
    found = _Values(values, name, files)
    return {file: found.items(documents) for file, documents in files.items()}


@dataclass(frozen=True)
class _Values:
    """What fills the places of templates."""

    values: Mapping[str, Any]
    name: str
    files: Mapping[str, list[Any]]
    key: str = ""

    def get(self, path: str) -> Any:
        """The value of a path; None if there is none."""
        if path in ("name", "key"):
            return getattr(self, path)
        value: Any = self.values
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def holds(self, tests: tuple[Test, ...]) -> bool:
        """Whether all tests hold."""
        return all(self._holds(test) != test.is_opposite for test in tests)

    def _holds(self, test: Test) -> bool:
        value = self.get(test.path)
        if test.prefix:
            return str(value or "").startswith(test.prefix)
        if test.longer:
            return len(value) > test.longer
        if test.above:
            return int(value or 0) > test.above
        return value == test.equal if test.equal else bool(value)

    def of(self, node: Any) -> Any:
        """The data of a template; `_ABSENT` if there is none."""
        match node:
            case str():
                return _PLACE.sub(lambda place: str(self.get(place[1])), node)
            case Value():
                return self.get(node.path) or (self.get(node.fallback) if node.fallback else self.get(node.path))
            case Sum():
                return math.ceil(self.get(node.path)) * node.times + node.number
            case When():
                chosen = node.then if self.holds(node.all) else node.otherwise
                return _ABSENT if chosen is None else self.of(chosen)
            case Hash():
                text = json.dumps(self.items(self.files[node.file]), sort_keys=True)
                return sha256(text.encode()).hexdigest()
            case AppToml():
                return self._toml(node)
            case list():
                return self.items(node)
            case dict():
                return self._mapping(node)
        return node

    def items(self, nodes: list[Any]) -> list[Any]:
        """The items of a list."""
        refusals = [node.message for node in nodes if isinstance(node, Refuse) and self.holds(node.tests)]
        if refusals:
            raise UsageError("; ".join(refusals), help='"On Kubernetes" in the documentation lists the values')
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, Splice | Part):
                items += self._spliced(node)
            elif isinstance(node, Each):
                items += [replace(self, key=key).of(node.item) for key in sorted(self.get(node.path))]
            elif not isinstance(node, Refuse) and (item := self.of(node)) is not _ABSENT:
                items += item if isinstance(node, When) and isinstance(item, list) else [item]
        return items

    def _mapping(self, node: dict[Any, Any]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.items():
            if isinstance(key, Splice | Part):
                mapping |= self._spliced(key)
            elif (data := self.of(value)) is not _ABSENT:
                mapping[key] = data
        return mapping

    def _spliced(self, node: Splice | Part) -> Any:
        return self.get(node.path) if isinstance(node, Splice) else self.of(node.data)

    def _toml(self, node: AppToml) -> str:
        sections = {name: dict(section) for name, section in self.values["settings"].items()}
        for test, section, name, value in node.fixed:
            if test is None or self.holds((test,)):
                sections.setdefault(section, {})[name] = self.of(value)
        if shards := self.get("shards"):
            addresses = [self.of(node.shard.replace("@index@", str(index))) for index in range(shards)]
            sections.setdefault("ps", {})["addresses"] = addresses
        lines = []
        for title, fields in sorted(sections.items()):
            lines.append(f"[{title}]")
            for name, value in sorted(fields.items()):
                tables = value.items() if isinstance(value, dict) else ()
                lines += [f"{name}.{json.dumps(key)} = {json.dumps(one)}" for key, one in tables]
                lines += [] if isinstance(value, dict) else [f"{name} = {json.dumps(value)}"]
        return "\n".join(lines) + "\n"


def helm_text(documents: list[Any]) -> str:
    """Return a file's documents as a template of a Helm chart."""
    lines: list[str] = []
    for document in documents:
        lines += _item(document, "", "---")
    return "\n".join(lines) + "\n"


def helm_parts(files: Mapping[str, list[Any]]) -> str:
    """Return the parts of all files as named templates."""
    lines = []
    for name, data in sorted(_parts([*files.values()]).items()):
        body = (
            _entries(data, "") if isinstance(data, dict) else (line for node in data for line in _item(node, "", "-"))
        )
        lines += [f'{{{{- define "streamlearn.{name}" }}}}', *body, "{{- end }}"]
    return "\n".join(lines) + "\n"


def _parts(node: Any) -> dict[str, Any]:
    match node:
        case Part():
            return {node.name: node.data}
        case When():
            return _parts([node.then, node.otherwise])
        case dict():
            return _parts([*node, *node.values()])
        case list():
            found: dict[str, Any] = {}
            for inner in node:
                found |= _parts(inner)
            return found
    return {}


def _item(node: Any, pad: str, dash: str) -> Iterator[str]:
    """Yield the lines of an item of a list, or of a document, which `dash` begins."""
    match node:
        case Refuse():
            yield f"{{{{- if {_condition(node.tests)} }}}}{{{{ fail {json.dumps(node.message)} }}}}{{{{ end }}}}"
        case Splice():
            yield f"{pad}{{{{- with {_go(node.path)} }}}}{{{{ toYaml . | nindent {len(pad)} }}}}{{{{- end }}}}"
        case Part():
            yield f'{pad}{{{{- include "streamlearn.{node.name}" $ | nindent {len(pad)} }}}}'
        case Each():
            yield f"{pad}{{{{- range $key, $_ := {_go(node.path)} }}}}"
            yield from _item(node.item, pad, dash)
            yield f"{pad}{{{{- end }}}}"
        case When():
            yield f"{pad}{{{{- if {_condition(node.all)} }}}}"
            for item in node.then if isinstance(node.then, list) else [node.then]:
                yield from _item(item, pad, dash)
            yield f"{pad}{{{{- end }}}}"
        case dict() if dash == "---":
            yield dash
            yield from _entries(node, pad)
        case dict() if (flow := _flow(node)) is None or len(flow) + len(pad) > _FLOW_COLUMNS_MAX:
            first, *rest = _entries(node, f"{pad}  ")
            yield f"{pad}{dash} {first[len(pad) + 2 :]}"
            yield from rest
        case _:
            yield f"{pad}{dash} {_flow(node)}"


def _entries(node: dict[Any, Any], pad: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(key, Splice | Part):
            yield from _item(key, pad, "")
        else:
            yield from _entry(key, value, pad)


def _entry(key: str, value: Any, pad: str) -> Iterator[str]:
    name = _flow(key)
    match value:
        case When():
            yield f"{pad}{{{{- if {_condition(value.all)} }}}}"
            yield from _entry(key, value.then, pad)
            if value.otherwise is not None:
                yield f"{pad}{{{{- else }}}}"
                yield from _entry(key, value.otherwise, pad)
            yield f"{pad}{{{{- end }}}}"
        case Hash():
            file = f'print $.Template.BasePath "/{value.file}.yaml"'
            yield f"{pad}{name}: {{{{ include ({file}) $ | sha256sum }}}}"
        case AppToml():
            yield f"{pad}{name}: |"
            yield from (f"{pad}  {line}" for line in _toml_lines(value))
        case dict() | list() if (flow := _flow(value)) is None or len(flow) + len(pad) + len(key) > _FLOW_COLUMNS_MAX:
            yield f"{pad}{name}:"
            if isinstance(value, dict):
                yield from _entries(value, f"{pad}  ")
            else:
                for item in value:
                    yield from _item(item, f"{pad}  ", "-")
        case _:
            yield f"{pad}{name}: {_flow(value)}"


def _flow(node: Any) -> str | None:
    """The data in one line; None if it has a part that needs lines of its own."""
    match node:
        case Value():
            fallback = f"default {_go(node.fallback)} " if node.fallback else ""
            return f"{{{{ {fallback}{_go(node.path)} | toJson }}}}"
        case Sum():
            return f"{{{{ add (mul {node.times} (ceil {_go(node.path)})) {node.number} }}}}"
        case str():
            text = _PLACE.sub(lambda place: f"{{{{ {_go(place[1])} }}}}", node)
            return text if _PLAIN.fullmatch(text) and text not in _NOT_PLAIN else json.dumps(text)
        case list():
            items = [_flow(item) for item in node]
            return None if None in items else f"[{', '.join(item or '' for item in items)}]"
        case dict():
            if any(isinstance(key, _NODES) for key in node):
                return None
            entries = [(_flow(key), _flow(value)) for key, value in node.items()]
            whole = ", ".join(f"{key}: {value}" for key, value in entries)
            return None if any(value is None for _, value in entries) else f"{{{whole}}}"
    return None if isinstance(node, _NODES) else json.dumps(node)


def _go(path: str) -> str:
    return {"name": "$.Release.Name", "key": "$key", "index": "$index"}.get(path, f"$.Values.{path}")


def _condition(tests: tuple[Test, ...]) -> str:
    texts = []
    for test in tests:
        text = _go(test.path)
        if test.prefix:
            text = f"hasPrefix {json.dumps(test.prefix)} {text}"
        elif test.longer:
            text = f"gt (len {text}) {test.longer}"
        elif test.above:
            text = f"gt (int {text}) {test.above}"
        elif test.equal:
            text = f"eq {text} {json.dumps(test.equal)}"
        texts.append(
            f"not ({text})" if test.is_opposite and " " in text else f"not {text}" if test.is_opposite else text
        )
    return texts[0] if len(texts) == 1 else "and " + " ".join(f"({text})" for text in texts)


def _toml_lines(node: AppToml) -> Iterator[str]:
    yield "{{- $settings := deepCopy $.Values.settings }}"
    for test, section, name, value in node.fixed:
        text = f"(list {' '.join(map(json.dumps, value))})" if isinstance(value, list) else json.dumps(value)
        change = f"$_ := mergeOverwrite $settings (dict {json.dumps(section)} (dict {json.dumps(name)} {text}))"
        yield f"{{{{- if {_condition((test,))} }}}}{{{{ {change} }}}}{{{{ end }}}}" if test else f"{{{{- {change} }}}}"
    yield "{{- if $.Values.shards }}{{ $addresses := list }}"
    yield "{{- range $index := until (int $.Values.shards) }}"
    shard = _PLACE.sub(lambda place: "%v", node.shard)
    places = " ".join(_go(place) for place in _PLACE.findall(node.shard))
    yield f"{{{{- $addresses = append $addresses (printf {json.dumps(shard)} {places}) }}}}{{{{ end }}}}"
    yield '{{- $_ := mergeOverwrite $settings (dict "ps" (dict "addresses" $addresses)) }}{{ end }}'
    yield "{{- range $title, $section := $settings }}"
    yield "[{{ $title }}]"
    yield "{{- range $name, $value := $section }}"
    yield '{{- if kindIs "map" $value }}{{ range $key, $one := $value }}'
    yield "{{ $name }}.{{ toJson $key }} = {{ toJson $one }}"
    yield "{{- end }}{{ else }}"
    yield "{{ $name }} = {{ toJson $value }}"
    yield "{{- end }}{{ end }}{{ end }}"
