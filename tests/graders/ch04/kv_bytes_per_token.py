"""Answers to `kv_bytes_per_token`: wrong ideas about what a token keeps, and differently built right ones."""


def _mla(model, bits):
    return model["layers"] * (model["latent"] + model["rope"]) * bits / 8


def counts_query_heads(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["heads"] * model["head_dim"] * bits / 8


def forgets_the_value(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return model["layers"] * model["kv_heads"] * model["head_dim"] * bits / 8


def counts_one_layer(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["kv_heads"] * model["head_dim"] * bits / 8


def counts_bits(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * bits


def counts_numbers(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"]


def counts_the_models_width(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["hidden"] * bits / 8


def divides_the_width_by_heads(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * (model["hidden"] // model["heads"]) * bits / 8


def always_sixteen_bits(model, bits):
    if model["latent"]:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * 2


def expands_mla(model, bits):
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * bits / 8


def by_the_formula(model, bits):
    if model["latent"] > 0:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * bits // 8


def layer_by_layer(model, bits):
    import numpy as np

    kept = [model["latent"], model["rope"]] if model["latent"] else [model["head_dim"]] * 2 * model["kv_heads"]
    return np.sum([np.sum(kept) for _ in range(model["layers"])]) * (bits / 8)


WRONG = {
    counts_query_heads: {"basic": "queries aren't kept", "edges": "every shape", "property": "only KV heads count"},
    forgets_the_value: {"basic": "a key AND a value", "edges": "every shape", "property": "keys and values both count"},
    counts_one_layer: {"basic": "this is one layer", "edges": "every shape", "property": "a cache of its own"},
    counts_bits: {"basic": "these are bits", "edges": None, "property": "in bytes"},
    counts_numbers: {"basic": "each number takes bits / 8 bytes", "edges": None, "property": "use the argument bits"},
    counts_the_models_width: {"basic": "the model's width", "edges": None, "property": "not the model's width"},
    divides_the_width_by_heads: {"edges": "use head_dim"},
    always_sixteen_bits: {"edges": "use the argument bits", "property": "use the argument bits"},
    expands_mla: {"edges": "leave the given lines"},
}
RIGHT = [by_the_formula, layer_by_layer]
