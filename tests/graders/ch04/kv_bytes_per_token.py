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


def forgets_to_return(model, bits):
    by_the_formula(model, bits)


def by_the_formula(model, bits):
    if model["latent"] > 0:
        return _mla(model, bits)
    return 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * bits // 8


def layer_by_layer(model, bits):
    import numpy as np

    kept = [model["latent"], model["rope"]] if model["latent"] else [model["head_dim"]] * 2 * model["kv_heads"]
    return np.sum([np.sum(kept) for _ in range(model["layers"])]) * (bits / 8)


WRONG = {
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "nothing came back: does every way through",
        "property": "nothing came back: does every way through",
    },
    counts_query_heads: {
        "basic": "queries aren't kept",
        "edges": "these are the query heads: queries aren't",
        "property": "only KV heads count",
    },
    forgets_the_value: {
        "basic": "a key AND a value",
        "edges": "half of it: a token keeps a key AND a",
        "property": "keys and values both count",
    },
    counts_one_layer: {
        "basic": "this is one layer",
        "edges": "this is one layer: each layer has a cache",
        "property": "a cache of its own",
    },
    counts_bits: {"basic": "these are bits", "edges": None, "property": "in bytes"},
    counts_numbers: {"basic": "each number takes bits / 8 bytes", "edges": None, "property": "use the argument bits"},
    counts_the_models_width: {"basic": "the model's width", "edges": None, "property": "not the model's width"},
    divides_the_width_by_heads: {"basic": "heads needn't be as wide as hidden /", "edges": "use head_dim"},
    always_sixteen_bits: {"edges": "use the argument bits", "property": "use the argument bits"},
    expands_mla: {"edges": "leave the given lines"},
}
RIGHT = [by_the_formula, layer_by_layer]
