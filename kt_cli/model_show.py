"""What `kt model show` says of a model: sizes, storage, cache, parsers, what is special."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kt_cli import names, output
from kt_core import paths
from kt_core.errors import NotFound
from kt_core.messages import t
from kt_core.models import catalogue, files, registry, remote, resolve, store
from kt_core.models.cache import cache_numbers
from kt_core.models.catalogue import Known
from kt_core.models.knowledge import quirk_text
from kt_core.models.spec import describe, read_config_spec
from kt_core.types import CachePart, ModelFiles, ModelSpec

_CACHE_BYTES = 2  # a number of the cache, in the engine's usual bfloat16
FILES, CONFIG, HUB, SHAPES = "files", "config", "hub", "shapes"
SOURCES = {
    FILES: "model.source_files",
    CONFIG: "model.source_config",
    HUB: "model.source_hub",
    SHAPES: "model.source_shapes",
}


@dataclass(frozen=True)
class Found:
    """A model that may be anywhere. `files` has no files where only its configuration or its shapes are known; `source` is
    a key of SOURCES."""

    files: ModelFiles
    spec: ModelSpec
    source: str
    known: Known | None = None

    @property
    def name(self) -> str:
        return self.files.name

    @property
    def path(self) -> str | None:
        return self.files.path or None


def look(name: str, hub: bool) -> Found:
    """The model called `name` and its spec; with `hub`, by the headers of its repository.

    A model on this disk is read; else built-in shapes answer, else the hub. Raises NotFound, and what the readers raise.
    """
    if config := _config_alone(name):
        return Found(_without_weights(config.parent.name, str(config)), read_config_spec(config), CONFIG)
    known = catalogue.find(name)
    if hub and known and not known.repo:
        raise NotFound("model.no_repository", name=known.name)
    if hub or (known is None and files.repository(name.partition(":")[0]) and not _here(name)):
        read = remote.read_headers(known.repo if known and ":" not in name and known.repo else name)
        return _refined(read, describe(read), HUB, known)
    if known is None or known.path or _here(name):
        try:
            read = resolve(name)
        except NotFound:
            if (entry := registry.find(name)) is None:
                raise
            return Found(_without_weights(entry.name, ""), registry.spec(entry), SHAPES)
        return _refined(read, describe(read), FILES, known)
    spec = catalogue.spec(known)
    if spec is None:  # shapes do not say
        return look(known.repo, hub=True)
    return _refined(_without_weights(known.name, ""), spec, SHAPES, known)


def _without_weights(name: str, path: str) -> ModelFiles:
    return ModelFiles(name, path, "safetensors", ())


def _refined(read: ModelFiles, spec: ModelSpec, source: str, known: Known | None) -> Found:
    return Found(read, catalogue.refined(spec, known) if known else spec, source, known)


def _config_alone(name: str) -> Path | None:
    """The configuration file that `name` is, or that is the only part of a model in the folder `name`."""
    path = paths.expanded(name)
    if path.suffix == ".json" and paths.is_file(path):
        return path.absolute()
    config = path / files.CONFIG
    weights = paths.is_file(config) and any(file.suffix in (".safetensors", ".gguf", ".bin") for file in path.iterdir())
    return config.absolute() if paths.is_file(config) and not weights else None


def _here(name: str) -> bool:
    """Whether the name is that of files on this disk, or of a model that kt can pull."""
    if registry.find(name) or store.path(name):
        return True
    try:
        resolve(name)
    except NotFound:
        return False
    return True


def found(name: str, hub: bool) -> dict[str, Any]:
    """All that is known of the model called `name`, as data. Raises as look does."""
    model = look(name, hub)
    spec, known = model.spec, model.known
    growing = sum(part.layers * part.numbers for part in spec.cache if not part.window)
    return {
        "name": model.name,
        "source": model.source,
        "path": model.path,
        "aliases": list(known.aliases) if known else [],
        "repos": dict(known.repos) if known else {},
        "spec": asdict(spec),
        "bytes": sum(spec.bytes_by_part.values()),
        "cache_bytes_per_token": int(growing * _CACHE_BYTES),
        "cache_bytes_at_context": cache_numbers(spec.cache, spec.context) * _CACHE_BYTES,
    }


def shown(data: dict[str, Any]) -> str:
    """The same in words."""
    spec = data["spec"]
    rows = [
        (t("model.row_model"), data["name"] + (f"  ({output.listed(data['aliases'])})" if data["aliases"] else "")),
        (t("model.row_source"), t(SOURCES[data["source"]], path=data["path"] or "")),
        (t("model.row_family"), spec["family"]),
        (t("model.row_size"), _size(spec)),
        (t("model.row_layers"), _layers(spec)),
        (t("model.row_stored"), _stored(data)),
        *[(t("model.row_part", part=names.of("part", part)), _part(spec, part)) for part in spec["parameters_by_part"]],
        (t("model.row_context"), f"{spec['context']:,}"),
        (t("model.row_cache"), _cache(data)),
        (t("model.row_parsers"), _parsers(spec)),
    ]
    rows += [(t("model.row_repository"), f"{repo}  {form}".rstrip()) for form, repo in data["repos"].items()]
    rows += [(t("model.row_special"), quirk_text(quirk)) for quirk in spec["quirks"]]
    return output.table(rows)


def _size(spec: dict[str, Any]) -> str:
    if not spec["experts"]:
        return _billions(spec["parameters"])
    return t("model.active", total=_billions(spec["parameters"]), active=_billions(spec["active_parameters"]))


def _billions(count: int) -> str:
    if count >= 1e12:
        return f"{count / 1e12:.2f} T"
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def _layers(spec: dict[str, Any]) -> str:
    row = t("model.layers", layers=spec["layers"], hidden=spec["hidden"], heads=spec["heads"], kv=spec["kv_heads"])
    if not spec["experts"]:
        return row
    numbers = {"moe": spec["moe_layers"], "experts": spec["experts"], "k": spec["experts_per_token"]}
    return row + t("model.experts", **numbers, width=spec["expert_width"])


def _stored(data: dict[str, Any]) -> str:
    formats = output.listed(f"{form} {output.size(count)}" for form, count in data["spec"]["formats"].items())
    method = data["spec"]["method"]
    return f"{output.size(data['bytes'])}: {formats}" + (t("model.method", method=method) if method else "")


def _part(spec: dict[str, Any], part: str) -> str:
    return f"{_billions(spec['parameters_by_part'][part])}, {output.size(spec['bytes_by_part'].get(part, 0))}"


def _cache(data: dict[str, Any]) -> str:
    parts = [CachePart(**part) for part in data["spec"]["cache"]]
    kinds = output.listed(f"{names.of('cache', part.kind)} x {part.layers}" for part in parts)
    return t(
        "model.cache",
        kinds=kinds or "-",
        token=output.size(data["cache_bytes_per_token"]),
        whole=output.size(data["cache_bytes_at_context"]),
    )


def _parsers(spec: dict[str, Any]) -> str:
    calls, reasoning = spec["tool_parser"] or "-", spec["reasoning_parser"] or "-"
    row = t("model.parsers", calls=calls, reasoning=reasoning)
    return row + t("model.no_template") if spec["chat_template"] is False else row


def known() -> list[dict[str, Any]]:
    """Every model that has shapes, by name: sizes, method, repositories."""
    rows = []
    for name, model in sorted({**catalogue.builtin(), **catalogue.own()}.items(), key=lambda item: item[0].casefold()):
        if spec := catalogue.spec(model):
            sizes = {"parameters": spec.parameters, "active_parameters": spec.active_parameters}
            bytes_ = sum(spec.bytes_by_part.values())
            rows.append({"name": name, **sizes, "bytes": bytes_, "method": spec.method, "repository": model.repo})
    return rows


def known_table(rows: list[dict[str, Any]]) -> str:
    header = ("model.column_name", "model.column_parameters", "model.column_size", "model.column_method")
    cells = []
    for row in rows:
        active = row["active_parameters"] if row["active_parameters"] < 0.9 * row["parameters"] else 0
        numbers = {"total": _billions(row["parameters"]), "active": _billions(active)}
        size = t("model.active", **numbers) if active else numbers["total"]
        cells.append((row["name"], size, output.size(row["bytes"]), row["method"] or "-", row["repository"]))
    return output.table(cells, (*map(t, header), t("model.column_repository")))
