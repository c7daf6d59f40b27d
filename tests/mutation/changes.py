"""Which small changes of a function are there: the slips of a hand, and of a head, that a check should notice.

`mutations` reads source, changes one place at a time in its syntax tree and writes it again; what it gives is text in
`ast.unparse`'s form, without comments and docstrings.

What this module does not do: say whether a change matters. That is what the checks are asked, in `judging`.
"""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

EDGES = {  # the other side of the edge, and for `==` both sides
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.LtE, ast.GtE),
}
OPPOSITES = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
COMMUTATIVE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)
PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("ceil", "floor"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("bisect_left", "bisect_right"),
    ("left", "right"),
)
SWAPPED = dict([*PAIRS, *(pair[::-1] for pair in PAIRS)])
REMOVABLE = {"abs", "round", "int", "sorted", "list", "dict", "set", "ceil", "floor", "Fraction", "deepcopy"}
ROUNDED = {"ceil", "floor", "int"}  # a learner may write `round` in their place
OPTIONAL = {"default", "key", "start", "reverse", "initial"}
ANY_ORDER = {"min", "max", "gcd", "minimum", "maximum", "isclose"}
REMOVED = (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.While, ast.Return, ast.Break, ast.Continue)
NO_CODE = {"annotation", "returns", "decorator_list", "ctx", "op", "ops"}
TOLERANCE = 1e-5  # a smaller float, and a power of ten as large as 1 / TOLERANCE, is there for the sake of rounding


@dataclass(frozen=True)
class Mutation:
    """One changed place. `was` and `now` are the changed lines, without their indentation."""

    kind: str
    source: str
    was: str
    now: str


@dataclass(frozen=True)
class Slot:
    """A place in a tree: a field of a node, or one item of a field that is a list."""

    holder: ast.AST
    field: str
    index: int | None

    def filled(self, tree: ast.AST, new: ast.AST | Sequence[ast.AST]) -> str:
        """The tree's source with something else in this place; the tree stays as it is. A list replaces an item."""
        old = getattr(self.holder, self.field)
        items = [new] if isinstance(new, ast.AST) else list(new)
        if self.index is not None:
            items = [*old[: self.index], *items, *old[self.index + 1 :]]
            if not items and self.field == "body":
                items = [ast.Pass()]
        setattr(self.holder, self.field, items[0] if self.index is None else items)
        try:
            return ast.unparse(ast.fix_missing_locations(tree))
        finally:
            setattr(self.holder, self.field, old)


def normal(source: str) -> str:
    """The source without comments and docstrings, as `ast.unparse` writes it.

    Examples
    --------
    >>> normal('def f(x):\\n    "Says what."\\n    return x+1  # one more')
    'def f(x):\\n    return x + 1'
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(tree))


def changed(before: str, after: str) -> tuple[str, str]:
    """The lines that two texts don't share, as (was, now).

    Examples
    --------
    >>> changed("a\\n  b\\nc", "a\\n  d\\nc")
    ('b', 'd')
    """
    left, right = before.splitlines(), after.splitlines()
    was, now = list[str](), list[str]()
    for tag, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag != "equal":
            was += map(str.strip, left[i:j])
            now += map(str.strip, right[k:m])
    return "\n".join(was), "\n".join(now)


def mutations(source: str) -> Iterator[Mutation]:
    """Each small change of the functions in `source` that gives another text, once.

    Examples
    --------
    >>> for one in mutations("def f(x):\\n    return x < 1"):
    ...     print(f"{one.kind}: {one.now}")
    statement removed: pass
    comparison: return x <= 1
    comparison: return x >= 1
    whole number: return x < 2
    whole number: return x < 0
    """
    before = normal(source)
    tree = ast.parse(before)
    seen = {_short(before)}
    for slot, node in _slots(tree):
        for kind, new in _changes(slot, node):
            after = slot.filled(tree, ast.parse(new, mode="eval").body if isinstance(new, str) else new)
            try:
                compile(after, "<mutant>", "exec")
            except SyntaxError:  # `break` became `continue`, outside a loop for example
                continue
            if (short := _short(after)) not in seen:
                seen.add(short)
                yield Mutation(kind, after, *changed(before, after))


class _Shorten(ast.NodeTransformer):
    """Takes away what changes no number: adding 0, multiplying by 1."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=0)):
                return node.left
            case ast.BinOp(op=ast.Mult() | ast.Div() | ast.Pow(), right=ast.Constant(value=1)):
                return node.left
            case ast.BinOp(op=ast.Add(), left=ast.Constant(value=0)):
                return node.right
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=1)):
                return node.right
        return node


def _short(source: str) -> str:
    return ast.unparse(_Shorten().visit(ast.parse(source)))


def _slots(holder: ast.AST) -> Iterator[tuple[Slot, ast.AST]]:
    for field, value in ast.iter_fields(holder):
        if field in NO_CODE or isinstance(holder, ast.JoinedStr):
            continue
        for index, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(item, ast.AST) and not _is_left_alone(item):
                yield Slot(holder, field, index), item
                yield from _slots(item)


def _is_left_alone(node: ast.AST) -> bool:
    """Tables of constants, which are data, and `strict=True`, which no right call needs."""
    match node:
        case ast.Dict(values=[_, *_]):
            return all(isinstance(leaf, (ast.Constant, ast.List, ast.Tuple, ast.Dict)) for leaf in _leaves(node))
        case ast.keyword(arg="strict"):
            return True
    return False


def _leaves(node: ast.AST) -> Iterator[ast.AST]:
    return (each for each in ast.walk(node) if each is not node and not isinstance(each, ast.expr_context))


def _is_tolerant(node: ast.AST) -> bool:
    """Whether an expression allows for rounding: what happens on its very edge can't be told."""
    for each in ast.walk(node):
        match each:
            case ast.Constant(value=float(value)) if 0 < abs(value) < TOLERANCE:
                return True
            case ast.BinOp(left=ast.Constant(value=10), op=ast.Pow(), right=ast.Constant(value=int(digits))):
                return 10**digits >= 1 / TOLERANCE
    return False


Change = tuple[str, "ast.AST | Sequence[ast.AST] | str"]


def _changes(slot: Slot, node: ast.AST) -> Iterator[Change]:
    """What else may stand in this place; a text is an expression, a list takes the place of a statement."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    if isinstance(node, ast.expr):
        yield from _of_condition(slot, node)
        yield from _of_expression(slot, node)
        yield from _of_ends(slot, node)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, REMOVED):
        yield "statement removed", []
    match node:
        case ast.If():
            yield "condition always true", node.body
            yield "condition never true", node.orelse
        case ast.AugAssign(target=target, op=op, value=value):
            for other in COMPUTED.get(type(op), ()):
                yield "arithmetic", ast.AugAssign(target, other(), value)
            yield "not added up", ast.Assign([target], value)
        case ast.Break():
            yield "break, continue", ast.Continue()
        case ast.Continue():
            yield "break, continue", ast.Break()
        case ast.FunctionDef():
            yield from _kept_states(node)


def _kept_states(function: ast.FunctionDef) -> Iterator[Change]:
    """An empty list that the function makes becomes a default argument, so that it lives from call to call."""
    for number, statement in enumerate(function.body):
        match statement:
            case ast.Assign(targets=[ast.Name() as name], value=value):
                pairs = [(name, value)]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=True)) if len(targets) == len(values) else []
            case _:
                continue
        for pair in pairs:
            target, value = pair
            if isinstance(target, ast.Name) and _is_fresh(value):
                new = copy.copy(function)
                new.args = copy.deepcopy(function.args)
                if new.args.vararg:
                    new.args.kwonlyargs.append(ast.arg(target.id))
                    new.args.kw_defaults.append(value)
                else:
                    new.args.args.append(ast.arg(target.id))
                    new.args.defaults.append(value)
                kept = [f"{ast.unparse(name)} = {ast.unparse(each)}" for name, each in pairs if name is not target]
                rest = ast.parse("\n".join(kept)).body
                new.body = [*function.body[:number], *rest, *function.body[number + 1 :]] or [ast.Pass()]
                yield "state kept", new


def _is_fresh(value: ast.expr) -> bool:
    """Whether this makes a list, set or dictionary to be filled; one of texts is there to be read."""
    match value:
        case ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(values=items):
            return all(isinstance(item, ast.Constant) and not isinstance(item.value, str) for item in items)
        case ast.Call(func=ast.Name(id="list" | "dict" | "set" | "deque"), args=[]):
            return True
    return False


def _of_condition(slot: Slot, node: ast.expr) -> Iterator[Change]:
    """A place that asks yes or no is asked the other way round, or not at all."""
    if slot.field in ("test", "ifs"):
        match node:
            case ast.Compare(ops=[_]) | ast.UnaryOp(op=ast.Not()):
                pass  # has another operator instead, or loses its `not`
            case _:
                yield "negated", ast.UnaryOp(ast.Not(), node)
        if slot.field == "ifs":
            yield "filter removed", []


def _of_expression(slot: Slot, node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for i, op in enumerate(ops):
                edges = () if _is_tolerant(node) else EDGES.get(type(op), ())
                for other in (*edges, OPPOSITES[type(op)]):
                    yield "comparison", ast.Compare(left, [*ops[:i], other(), *ops[i + 1 :]], others)
        case ast.BoolOp(op=op, values=values):
            yield "and, or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield "condition removed", ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.BinOp(left=left, op=op, right=right):
            for other in COMPUTED.get(type(op), ()):
                yield "arithmetic", ast.BinOp(left, other(), right)
            yield "term removed", left
            if isinstance(op, COMMUTATIVE):
                yield "term removed", right
            elif not _is_power(node):
                yield "operands swapped", ast.BinOp(right, op, left)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield "sign removed" if isinstance(node.op, ast.USub) else "negated", operand
        case ast.Constant(value=value):
            yield from _of_constant(slot, value)
        case ast.IfExp(body=body, orelse=orelse):
            yield "condition always true", body
            yield "condition never true", orelse
        case ast.Call():
            yield from _of_call(node)
        case ast.List(elts=[first, second, *rest]) | ast.Tuple(elts=[first, second, *rest]):
            if isinstance(slot.holder, ast.Return):
                yield "order swapped", type(node)([second, first, *rest], ast.Load())


def _is_power(node: ast.AST) -> bool:
    """Whether this is a number written as a power, such as 2**30."""
    match node:
        case ast.BinOp(left=ast.Constant(), op=ast.Pow(), right=ast.Constant()):
            return True
    return False


def _of_constant(slot: Slot, value: object) -> Iterator[Change]:
    if isinstance(value, bool):
        yield "true, false", repr(not value)
    elif isinstance(value, int) and _is_power(slot.holder) and (slot.field == "left" or _is_tolerant(slot.holder)):
        return
    elif isinstance(value, int):
        yield "whole number", repr(value + 1)
        yield "whole number", repr(value - 1)
    elif isinstance(value, float):
        if 0 < abs(value) < TOLERANCE:
            yield "tolerance", "0.0"
            yield "tolerance", "0.001"
        elif value == 0:
            yield "number", "1.0"
        else:
            yield "number", repr(float(f"{value * 1.01:.12g}"))
            yield "number", repr(float(f"{value * 0.99:.12g}"))
    elif isinstance(value, str) and value in SWAPPED:
        yield "side swapped", repr(SWAPPED[value])
    elif value is None and isinstance(slot.holder, (ast.Return, ast.keyword, ast.IfExp, ast.Assign)):
        yield "nothing is zero", "0"


def _of_call(node: ast.Call) -> Iterator[Change]:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case _:
            return
    arguments = [ast.unparse(each) for each in node.args]
    if name in SWAPPED:
        if isinstance(node.func, ast.Name):
            other: ast.expr = ast.Name(SWAPPED[name])
        else:
            other = ast.Attribute(node.func.value, SWAPPED[name])
        yield "function swapped", ast.Call(other, node.args, node.keywords)
    if arguments and name in ROUNDED:
        yield "rounding", f"round({arguments[0]})"
    if arguments and name in REMOVABLE:
        yield "call removed", node.args[0]
    if arguments and name == "round":
        yield "rounding", f"int({arguments[0]})"
    if name == "sorted" and isinstance(node.args[0], ast.Name):
        keywords = ", ".join(map(ast.unparse, node.keywords))
        yield "sorted in place", f"{arguments[0]}.sort({keywords}) or {arguments[0]}"
    if name in ("min", "max", "minimum", "maximum") and len(arguments) > 1:
        for i in range(len(arguments)):
            rest = node.args[:i] + node.args[i + 1 :]
            yield "term removed", ast.Call(node.func, rest, node.keywords) if len(rest) > 1 else rest[0]
    for keyword in node.keywords:
        if keyword.arg in OPTIONAL:
            yield "option removed", ast.Call(node.func, node.args, [k for k in node.keywords if k is not keyword])
    if name not in ANY_ORDER and not any(isinstance(each, ast.Starred) for each in node.args):
        for i in range(len(arguments) - 1):
            swapped = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
            yield "arguments swapped", ast.Call(node.func, swapped, node.keywords)


def _of_ends(slot: Slot, node: ast.expr) -> Iterator[Change]:
    """One place more or less: the ends of ranges and slices, subscripts, and what a loop runs over."""
    match slot.holder:
        case ast.Call(func=ast.Name(id="range")) if slot.field == "args":
            yield from _shifted(node)
        case ast.Subscript() if slot.field == "slice":
            if not isinstance(node, (ast.Slice, ast.Tuple)):
                yield from _shifted(node)
        case ast.Slice():
            yield from _shifted(node)
        case ast.For() | ast.comprehension() if slot.field == "iter" and isinstance(node, (ast.Name, ast.Attribute)):
            yield "an end left out", f"{ast.unparse(node)}[1:]"
            yield "an end left out", f"{ast.unparse(node)}[:-1]"
    match node:
        case ast.Slice(lower=lower, upper=upper, step=step):
            if lower is None:
                yield "an end left out", ast.Slice(ast.Constant(1), upper, step)
            if upper is None:
                yield "an end left out", ast.Slice(lower, ast.UnaryOp(ast.USub(), ast.Constant(1)), step)


def _shifted(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return  # the number itself is changed
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant()):
            return
    yield "one more or less", f"({ast.unparse(node)}) + 1"
    yield "one more or less", f"({ast.unparse(node)}) - 1"
