"""``find_all`` finds what trying every assignment finds, on random graphs and patterns.

The oracle knows nothing of the solver: it assigns every node pattern to every node of the graph in turn, and checks
the definition of each relation on the finished assignment.
"""

from __future__ import annotations

import itertools
import random

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.pattern import NonLeafExternUse, attr_eq, dominates, is_op, make, together, wildcard

UNARY, BINARY = ("Relu", "Tanh"), ("Add", "Sub")


def random_graph(rng: random.Random, size: int, unary: tuple[str, ...] = UNARY) -> ir.Graph:
    inputs = [ir.Value(name="x0"), ir.Value(name="x1")]
    values, nodes = list(inputs), []
    for index in range(size):
        binary = rng.random() < 0.45
        op = rng.choice(BINARY if binary else unary)
        used = [rng.choice(values[-5:]) for _ in range(2 if binary else 1)]
        attributes = [ir.AttrInt64("k", rng.randint(0, 1))]
        out = ir.Value(name=f"v{index}")
        nodes.append(ir.Node("", op, used, attributes, outputs=[out], name=f"n{index}"))
        values.append(out)
    outputs = [v for v in values[2:] if not v.uses() or rng.random() < 0.15]
    return ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 20}, name="g")


class Spec:
    """A random pattern as plain data, from which both the pattern and the oracle's checks are made."""

    def __init__(self, rng: random.Random) -> None:
        self.count = rng.randint(2, 4)
        density = rng.choice([0.1, 0.4, 1.0])  # few constraints let many patterns match
        self.types: list[tuple[str, ...]] = []
        self.operands: list[list[int | str] | None] = []
        for index in range(self.count):
            op = rng.choice(BINARY + UNARY)
            types = tuple(dict.fromkeys((op, rng.choice(BINARY if op in BINARY else UNARY))))
            self.types.append(types if rng.random() < 0.6 else (op,))
            choices: list[int | str] = [*range(index), "w0", "w1", f"fresh{index}", f"other{index}"]
            operands = [rng.choice(choices) for _ in range(2 if op in BINARY else 1)]
            self.operands.append(operands if rng.random() < 0.6 * density else None)
        self.edges = []
        for user in range(1, self.count):
            if rng.random() < 0.7:
                self.edges.append((rng.randrange(user), user, rng.choice(["^", ">>"])))
        self.extern = [(rng.randrange(self.count), rng.choice([True, False]))] if rng.random() < 0.4 * density else []
        self.attr_eq = [tuple(rng.sample(range(self.count), 2))] if rng.random() < 0.4 * density else []
        self.attr = [rng.randrange(2) if rng.random() < 0.2 * density else None for _ in range(self.count)]
        self.not_used_by = [(rng.randrange(self.count), rng.choice(UNARY))] if rng.random() < 0.3 * density else []
        self.some_user_not = [(rng.randrange(self.count), rng.choice(UNARY))] if rng.random() < 0.3 * density else []
        self.non_leaf = rng.choice([True, False]) if rng.random() < 0.4 * density else None
        self.uniq = [rng.randrange(self.count)] if rng.random() < 0.2 * density else []

    def build(self):
        wildcards: dict[str, object] = {}
        patterns = []
        for types, operands, attr in zip(self.types, self.operands, self.attr, strict=True):
            pattern = is_op(types[0])
            for other in types[1:]:  # exercises several types in one pattern
                pattern = is_op(types[0], other)
            if attr is not None:
                pattern = pattern.has_attr(k=attr)
            if operands is not None:
                given_ = [patterns[o] if isinstance(o, int) else wildcards.setdefault(o, wildcard()) for o in operands]
                pattern = pattern(*given_)
            patterns.append(pattern)
        for producer, user, sign in self.edges:
            _ = patterns[producer] ^ patterns[user] if sign == "^" else patterns[producer] >> patterns[user]
        for which, must in self.extern:
            patterns[which].extern_use(must)
        for pair in self.attr_eq:
            attr_eq(*(patterns[i] for i in pair), names=["k"])
        for which, op in self.not_used_by:
            patterns[which].no_consumer(is_op(op))
        for which, op in self.some_user_not:
            _ = patterns[which] > ~is_op(op)
        if self.non_leaf is not None:
            patterns[0].add_graph_constraint(NonLeafExternUse(self.non_leaf))
        return together(*patterns), patterns

    def matches(self, graph: ir.Graph) -> set[tuple[str, ...]]:
        nodes = list(graph)
        per_pattern = [[n for n in nodes if n.op_type in types] for types in self.types]
        return {
            tuple(str(n.name) for n in chosen)
            for chosen in itertools.product(*per_pattern)
            if len(set(chosen)) == self.count and self.holds(graph, chosen)
        }

    def holds(self, graph: ir.Graph, chosen: tuple[ir.Node, ...]) -> bool:
        def users(node: ir.Node) -> set[ir.Node | str]:
            found: set[ir.Node | str] = {use.node for use in node.outputs[0].uses()}
            return found | ({"output"} if node.outputs[0] in graph.outputs else set())

        for node, attr in zip(chosen, self.attr, strict=True):
            if attr is not None and node.attributes["k"].as_int() != attr:
                return False
        for producer, user, sign in self.edges:
            if chosen[user] not in users(chosen[producer]):
                return False
            if sign == ">>" and users(chosen[producer]) != {chosen[user]}:
                return False
        for a, b in self.attr_eq:
            if chosen[a].attributes["k"].as_int() != chosen[b].attributes["k"].as_int():
                return False
        for which, must in self.extern:
            if bool(users(chosen[which]) - set(chosen)) != must:
                return False
        for which, op in self.not_used_by:
            if any(u != "output" and u.op_type == op for u in users(chosen[which])):
                return False
        for which, op in self.some_user_not:
            if not any(u != "output" and u.op_type != op for u in users(chosen[which])):
                return False
        if self.non_leaf is not None:
            exempt = {chosen[which] for which, _ in self.extern}
            for node in set(chosen) - exempt:
                inner = bool(users(node) & set(chosen))
                if inner and bool(users(node) - set(chosen)) != self.non_leaf:
                    return False
        return self.operands_hold(chosen)

    def operands_hold(self, chosen: tuple[ir.Node, ...]) -> bool:
        orders = []
        for node, operands in zip(chosen, self.operands, strict=True):
            if operands is None:
                orders.append([()])
            elif len(operands) != len(node.inputs):
                return False
            else:
                flips = itertools.permutations(operands) if node.op_type == "Add" else [tuple(operands)]
                orders.append([tuple(zip(flip, node.inputs, strict=True)) for flip in flips])
        for combination in itertools.product(*orders):
            seen: dict[int | str, ir.Value | None] = {}
            if all(
                seen.setdefault(key, value) is value and (isinstance(key, str) or chosen[key].outputs[0] is value)
                for pairs in combination
                for key, value in pairs
            ):
                return True
        return False


@settings(max_examples=400, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_find_all_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    graph, spec = random_graph(rng, rng.randint(3, 10)), Spec(rng)
    pattern, members = spec.build()
    found = [tuple(str(m.node(p).name) for p in members) for m in pattern.find_all(graph)]
    assert len(found) == len(set(found))
    assert set(found) == spec.matches(graph)


class Dominator:
    """A random domination and its definition, told way by way."""

    def __init__(self, rng: random.Random) -> None:
        self.parent, self.child = rng.choice(UNARY + BINARY), rng.choice(UNARY + BINARY)
        self.path = tuple(rng.sample(UNARY + BINARY, rng.randint(2, 4)))

    def matches(self, graph: ir.Graph) -> set[tuple[str, str]]:
        return {
            (str(p.name), str(c.name))
            for p in graph
            for c in graph
            if p is not c and p.op_type == self.parent and c.op_type == self.child
            if self.all_come_from(c, p) and self.all_lead_to(graph, p, c)
        }

    def all_come_from(self, node: ir.Node, parent: ir.Node) -> bool:
        """Each computed operand is the parent's, or of a path node of which the same holds; one at least is there."""
        makers = [m for m in node.predecessors()]
        return bool(makers) and all(
            m is parent or (m.op_type in self.path and self.all_come_from(m, parent)) for m in makers
        )

    def all_lead_to(self, graph: ir.Graph, node: ir.Node, child: ir.Node) -> bool:
        return node.outputs[0] not in graph.outputs and all(
            user is child or self.all_lead_to(graph, user, child) for user in node.successors()
        )


@settings(max_examples=400, deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.booleans())
def test_dominators_equal_brute_force(seed: int, as_method: bool) -> None:
    rng = random.Random(seed)
    graph, wanted = random_graph(rng, rng.randint(2, 9)), Dominator(rng)
    parent, child = is_op(wanted.parent), is_op(wanted.child)
    path = is_op(*wanted.path)
    pattern = child.dominates(parent, path) if as_method else dominates(parent, path, child)
    found = pattern.find_all(graph)
    assert {(m.node(parent).name, m.node(child).name) for m in found} == wanted.matches(graph)
    for match in found:
        inner = set(match.nodes) - {match.node(child)}
        assert all(set(node.successors()) <= set(match.nodes) for node in inner)


class Fuzzy(Spec):
    """A random pattern whose edges may skip Cast."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        while self.count > 3 or not (self.edges or any(self.operands)):
            super().__init__(rng)
        self.attr = [None] * self.count
        self.extern = self.not_used_by = self.some_user_not = self.uniq = []
        self.non_leaf = None
        for index in range(self.count):
            if self.types[index][0] in UNARY and rng.random() < 0.2:
                self.types[index] = ("Cast",)

    def holds(self, graph: ir.Graph, chosen: tuple[ir.Node, ...]) -> bool:
        def reaches(node: ir.Node, user: ir.Node) -> bool:
            return any(
                other is user or (other.op_type == "Cast" and other not in chosen and reaches(other, user))
                for other in node.successors()
            )

        def only_reaches(node: ir.Node, user: ir.Node) -> bool:
            return node.outputs[0] not in graph.outputs and all(
                other is user or (other.op_type == "Cast" and other not in chosen and only_reaches(other, user))
                for other in node.successors()
            )

        for node, attr in zip(chosen, self.attr, strict=True):
            if attr is not None and node.attributes["k"].as_int() != attr:
                return False
        for producer, user, sign in self.edges:
            if not reaches(chosen[producer], chosen[user]):
                return False
            if sign == ">>" and not only_reaches(chosen[producer], chosen[user]):
                return False
        if any(chosen[a].attributes["k"].as_int() != chosen[b].attributes["k"].as_int() for a, b in self.attr_eq):
            return False
        return self.operands_hold(chosen)

    def operands_hold(self, chosen: tuple[ir.Node, ...]) -> bool:
        def sources(value: ir.Value) -> list[ir.Value]:
            maker = value.producer()
            if maker is None or maker.op_type != "Cast" or maker in chosen:
                return [value]
            return [value, *sources(maker.inputs[0])]

        orders = []
        for node, operands in zip(chosen, self.operands, strict=True):
            if operands is not None:
                if len(operands) != len(node.inputs):
                    return False
                flips = itertools.permutations(operands) if node.op_type == "Add" else [tuple(operands)]
                orders.append([tuple(zip(flip, map(sources, node.inputs), strict=True)) for flip in flips])
        for combination in itertools.product(*orders):
            pairs = [pair for order in combination for pair in order]
            for values in itertools.product(*(values for _, values in pairs)):
                seen: dict[int | str, ir.Value] = {}
                if all(
                    seen.setdefault(key, value) is value and (isinstance(key, str) or chosen[key].outputs[0] is value)
                    for (key, _), value in zip(pairs, values, strict=True)
                ):
                    return True
        return False


@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_fuzzy_matching_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    graph, spec = random_graph(rng, rng.randint(3, 9), (*UNARY, *["Cast"] * 4)), Fuzzy(rng)
    pattern, members = spec.build()
    found = [tuple(str(m.node(p).name) for p in members) for m in pattern.find_all(graph, fuzzy_ops=["Cast"])]
    assert len(found) == len(set(found))
    assert set(found) == spec.matches(graph)


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_declaration_order_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    graph, spec = random_graph(rng, rng.randint(3, 10)), Spec(rng)
    results = []
    for shuffle in (False, True):
        pattern, members = spec.build()
        if shuffle:
            for member in members:
                member.constraints.reverse()
        results.append({tuple(str(m.node(p).name) for p in members) for m in pattern.find_all(graph)})
    assert results[0] == results[1]


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_a_root_matches_where_find_all_found_it(seed: int) -> None:
    rng = random.Random(seed)
    graph, spec = random_graph(rng, rng.randint(3, 9)), Spec(rng)
    pattern, _ = spec.build()
    roots = {m.root for m in pattern.find_all(graph)}
    for node in graph:
        assert (pattern.match(node) is not None) == (node.outputs[0] in roots)


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_disjoint_and_maximal_select_from_all(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(3, 12))
    base = is_op("Relu", "Tanh")
    pattern = base | is_op("Add")(base, wildcard()) | is_op("Add")
    every = {frozenset(m.nodes) for m in pattern.find_all(graph)}
    maximal = [frozenset(m.nodes) for m in pattern.find_all(graph, "maximal")]
    assert sorted(map(sorted_names, maximal)) == sorted(
        sorted_names(s) for s in every if not any(s < other for other in every)
    )
    disjoint = [frozenset(m.nodes) for m in pattern.find_all(graph, "disjoint")]
    taken = frozenset().union(*disjoint)
    assert sum(map(len, disjoint)) == len(taken)
    assert set(disjoint) <= every
    assert all(s & taken for s in every)


@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_interchangeable_parts_hide_no_set_of_nodes(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(4, 12))
    pattern = alike_parts(rng)
    every = {frozenset(m.nodes) for m in pattern.find_all(graph)}
    wanted = sorted(sorted_names(s) for s in every if not any(s < other for other in every))
    assert sorted(sorted_names(frozenset(m.nodes)) for m in pattern.find_all(graph, "maximal")) == wanted
    taken: set[ir.Node] = set()
    disjoint = pattern.find_all(graph, "disjoint")
    for match in disjoint:
        assert taken.isdisjoint(match.nodes)
        taken.update(match.nodes)
    assert all(s & taken for s in every) and {frozenset(m.nodes) for m in disjoint} <= every


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_one_place_has_the_best_of_all_matches_there(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(4, 10))
    pattern = alike_parts(rng)
    places = {node: index for index, node in enumerate(graph)}
    every: dict[ir.Value, list[list[int]]] = {}
    for found in pattern.find_all(graph):
        every.setdefault(found.root, []).append(sorted((places[node] for node in found.nodes), reverse=True))
    for node in graph:
        match = pattern.match(node)
        wanted = min(every.get(node.outputs[0], []), key=lambda nodes: (-len(nodes), nodes), default=None)
        assert (match and sorted((places[n] for n in match.nodes), reverse=True)) == wanted


def alike_parts(rng: random.Random):
    """Copies of a random part, related to each other and to their surroundings at random."""
    part = is_op(rng.choice(UNARY + BINARY))
    if rng.random() < 0.5:
        other = is_op(rng.choice(UNARY + BINARY))
        part = part ^ other if rng.random() < 0.5 else part >> other
    parts = list(make(rng.randint(2, 3), part))
    if rng.random() < 0.4:
        source = wildcard() if rng.random() < 0.5 else is_op(rng.choice(UNARY + BINARY))
        source.fork_to(parts if rng.random() < 0.7 else parts[:2])
    if rng.random() < 0.3:
        attr_eq(*parts, names=["k"])
    if rng.random() < 0.3:
        parts[0].last.extern_use(rng.choice([True, False]))
    if rng.random() < 0.2:
        parts[1].first.no_consumer(is_op(rng.choice(UNARY)))
    if rng.random() < 0.3:
        return together(is_op(rng.choice(BINARY))(parts[0], parts[1]), parts)
    if rng.random() < 0.3:
        parts[0].last.used_by(parts[1].first)
    return together(parts)


def sorted_names(nodes: frozenset[ir.Node]) -> list[str]:
    return sorted(str(node.name) for node in nodes)


@pytest.mark.parametrize("seed", range(40))
def test_alternatives_equal_the_union_of_what_each_finds(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, 12)

    def variant(kind: int):
        if kind == 0:
            return is_op("Add")(is_op("Relu"), wildcard())
        if kind == 1:
            return (is_op("Tanh") >> is_op("Add")).last
        return is_op("Sub")(wildcard(), is_op("Tanh")(is_op("Relu")))

    parts = [variant(k) for k in range(3)]
    union = {(m.root, m.nodes) for part in parts for m in part.find_all(graph)}
    a, b, c = (variant(k) for k in range(3))
    assert {(m.root, m.nodes) for m in (a | b | c).find_all(graph)} == union
