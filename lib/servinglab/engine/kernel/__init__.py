"""The engine's loops for numba.

`pots` serves pots that share a line, `stretches` one pot that counts tokens and blocks, both whole stretches of steps
at once; `steps` knows all of `servinglab.scheduling.vllm_rules`'s rules and goes step by step. The rest is what they
share: a `heap`, `sums` over many steps, `prices` of one, `clients` of a closed loop, and the `log` that they write.

A kernel is a function `advance` on the memory of an engine, a named tuple of arrays, of which some are records with
named fields: the rules, the state, the step under way, each seat or pot or block. Beside it stands what may be done
between two calls: `abort`, `view`, `next_ns`. Other compiled loops, over many engines or with a controller, can call
the same functions.
"""
