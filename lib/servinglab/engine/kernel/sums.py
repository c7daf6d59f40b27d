"""How long do many steps last? Sums over stretches of steps in closed form, exact to the nanosecond."""

from __future__ import annotations

from servinglab.base.compiled import HALF, NS, apart

FEW = 24  # steps up to which adding one by one beats the closed form


@apart
def span_ns(base: int, per_kv: int, kv: int, growth: int, steps: int) -> int:
    """Nanoseconds of `steps` steps: Σ ⌊(base + per_kv·(kv + i·growth) + ½ ns)/1 ns⌋, in femtoseconds inside."""
    b = base + per_kv * kv + HALF
    a = per_kv * growth
    if a == 0:
        return steps * max(1, b // NS)
    total = 0
    if steps <= FEW:
        for _ in range(steps):
            total += b // NS
            b += a
        return total
    n, m = steps, NS  # the floor-sum recursion (Euclid's algorithm on a and m)
    while True:
        if a >= m:
            total += (n - 1) * n // 2 * (a // m)
            a %= m
        if b >= m:
            total += n * (b // m)
            b %= m
        top = a * n + b
        if top < m:
            return total
        n, b, a, m = top // m, top % m, m, a


@apart
def roof_ns(base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, steps: int) -> int:
    """Nanoseconds of `steps` steps of which each takes the longer of two sides, both affine in the tokens held."""
    gap = base - base_2 + (per_kv - per_kv_2) * kv
    slope = (per_kv - per_kv_2) * growth
    if gap >= 0 and gap + slope * (steps - 1) >= 0:
        return span_ns(base, per_kv, kv, growth, steps)
    if gap <= 0 and gap + slope * (steps - 1) <= 0:
        return span_ns(base_2, per_kv_2, kv, growth, steps)
    turn = -(-abs(gap) // abs(slope))  # the first step at which the other side is at least as long
    if gap > 0:
        first = span_ns(base, per_kv, kv, growth, turn)
        return first + span_ns(base_2, per_kv_2, kv + turn * growth, growth, steps - turn)
    first = span_ns(base_2, per_kv_2, kv, growth, turn)
    return first + span_ns(base, per_kv, kv + turn * growth, growth, steps - turn)


@apart
def steps_to(base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, most: int, gap: int) -> int:
    """The fewest steps, from 1 to `most`, that last at least `gap` nanoseconds; `most` if none do."""
    first = roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, 1)
    high = min(most, gap // first + 1)  # no step is shorter than the first
    last = roof_ns(base, per_kv, base_2, per_kv_2, kv + high * growth, growth, 1)
    low = min(high, max(1, gap // last))  # none is longer than the last
    while low < high:
        middle = (low + high) >> 1
        if roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, middle) >= gap:
            high = middle
        else:
            low = middle + 1
    return low


@apart
def stretch(
    base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, most: int, gap: int
) -> tuple[int, int]:  # fmt: skip
    """The fewest steps, from 1 to `most`, that last at least `gap` nanoseconds, `most` if none do; and how long."""
    fs, more = base + per_kv * kv + HALF, per_kv * growth
    fs_2, more_2 = base_2 + per_kv_2 * kv + HALF, per_kv_2 * growth
    total = 0
    for i in range(1, min(most, FEW) + 1):
        total += max(fs, fs_2) // NS
        if total >= gap or i == most:
            return i, total
        fs += more
        fs_2 += more_2
    total = roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, most)
    if total <= gap:
        return most, total
    steps = steps_to(base, per_kv, base_2, per_kv_2, kv, growth, most, gap)
    return steps, roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, steps)
