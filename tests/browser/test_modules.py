"""What of the page only computes: graphs are folded and laid out, colours of terminals read, values compared."""

import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import pytest
import pytest_asyncio

from accsd.db.views.jobs import TaskSketch
from accsd.explain.fold import folded
from tests.support.browser import Tab, browsing
from tests.support.cluster import TestServer
from tests.support.gateway import serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("modules")]

APP = "/static/test/app"
STEPS = """
    const T = (key, service, deps = [], more = {}) =>
        ({id: key, task_key: key, service, depends_on: deps, status: "queued", ...more});
    const range = (n, make) => Array.from({length: n}, (_, i) => make(i));
    const shown = (nodes) => nodes.map((node) => [node.key, node.tasks.length, [...node.parents].map((p) => p.key)]);
"""


async def computed(tab: Tab, module: str, script: str) -> Any:
    return await tab.read(f"async () => {{ const m = await import('{APP}/{module}'); {STEPS} {script} }}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(server: TestServer) -> AsyncIterator[Tab]:
    """One for all: nothing that is only computed leaves a trace."""
    async with server.cloned() as url, serving(url) as gateway, browsing(gateway) as opened:
        await opened.page.goto(gateway.url)
        yield opened


async def test_what_is_alike_is_one_node_and_what_failed_stands_apart(tab: Tab):
    fan = """const fan = [T("split", "s"), ...range(4998, (n) => T(`p${n}`, "w", ["split"])),
                          T("merge", "s", range(4998, (n) => `p${n}`))];"""
    folded = await computed(tab, "graph/fold.js", f"{fan} return shown(m.fold(fan))")
    assert folded == [["split", 1, []], ["p0", 4998, ["split"]], ["merge", 1, ["p0"]]]
    apart = await computed(tab, "graph/fold.js", f"{fan} return shown(m.fold(fan, {{apart: new Set(['p7'])}}))")
    assert apart[1:] == [["p0", 4997, ["split"]], ["p7", 1, ["split"]], ["merge", 1, ["p0", "p7"]]]
    chains = await computed(
        tab,
        "graph/fold.js",
        """
        const shards = range(9, (n) => [T(`a${n}`, "a", ["r"]), T(`b${n}`, "b", [`a${n}`])]);
        return shown(m.fold([T("r", "r"), ...shards.flat()]))""",
    )
    assert chains == [["r", 1, []], ["a0", 9, ["r"]], ["b0", 9, ["a0"]]]
    apart_fans = await computed(
        tab,
        "graph/fold.js",
        """
        const five = (name, after) => range(5, (n) => T(`${name}${n}`, "a", [after]));
        return shown(m.fold([T("x", "r"), T("y", "r"), ...five("a", "x"), ...five("b", "y")]))""",
    )
    assert apart_fans[2:] == [["a0", 5, ["x"]], ["b0", 5, ["y"]]], "they come after different steps"
    few = await computed(
        tab, "graph/fold.js", "return shown(m.fold([T('x', 'r'), ...range(3, (n) => T(`a${n}`, 'a', ['x']))])).length"
    )
    assert few == 4
    items = await computed(
        tab,
        "graph/fold.js",
        """
        const items = range(6, (n) => T(`cut[${n}]`, "c", [], {parent: "cut"}));
        return shown(m.fold([T("cut", "c"), ...items, T("z", "z", ["cut"])]))""",
    )
    assert items == [["cut", 7, []], ["z", 1, ["cut"]]]


async def test_the_gateway_folds_as_the_page_does(tab: Tab):
    random = Random(5)
    keys = [f"k{n}" for n in range(120)]
    graphs: list[dict[str, tuple[str, list[str], int]]] = []  # by key: service, what it comes after, items
    for alike in (2, 6, 12):
        steps = {key: (f"s{random.randrange(2)}", random.sample(keys[: n // alike], min(2, n // alike)), 0)
                 for n, key in enumerate(keys)}  # fmt: skip
        graphs.append(steps | {"fan": ("w", keys[:3], 5), "end": ("s0", ["fan"], 0)})
    for steps in graphs:
        sketches = [
            TaskSketch(uuid5(NAMESPACE_OID, key), key, service, "queued", after, None)
            for key, (service, after, _) in steps.items()
        ]
        items = [
            TaskSketch(uuid4(), f"{each.key}[{n}]", each.service, "done", (), each.id)
            for each in sketches
            for n in range(steps[each.key][2])
        ]
        told = folded([*sketches, *items])
        plain = [{"id": str(e.id), "task_key": e.key, "service": e.service, "depends_on": list(e.depends_on),
                  "parent": e.parent and str(e.parent), "status": e.state} for e in (*sketches, *items)]  # fmt: skip
        script = f"""
            const told = {json.dumps(told)}, tasks = {json.dumps(plain)};
            const all = (nodes) => nodes.map((node) =>
                [node.key, node.tasks.map((task) => `${{task.task_key}} ${{task.status}}`).sort(), node.isFolded,
                 [...node.parents].map((parent) => parent.key).sort()]);
            const apart = new Set(["k7", "fan[2]"]), from = m.split(m.nodesOf(told), apart, () => true);
            const {{fold}} = await import("{APP}/graph/fold.js");
            return [all(m.nodesOf(told)), all(fold(tasks)), from.length - told.nodes.length]"""
        theirs, own, more = await computed(tab, "graph/folded.js", script)
        assert theirs == own
        assert more >= 1


async def test_a_layout_depends_on_the_structure_alone_and_nothing_overlaps(tab: Tab):
    found = await computed(
        tab,
        "graph/layout.js",
        """
        const {fold} = await import("/static/test/app/graph/fold.js");
        let seed = 7; const rnd = (n) => (seed = (seed * 16807) % 2147483647) % n;
        const steps = range(300, (n) => T(`n${n}`, `s${n}`, n ? [`n${rnd(n)}`, `n${rnd(n)}`] : []));
        const nodes = fold(steps), at = m.layOut(nodes);
        const again = m.layOut(fold(steps.map((step) => ({...step, status: "done"}))));
        const boxes = nodes.map((node) => at.places.get(node));
        const touch = (a, b) => Math.abs(a.x - b.x) < 184 && Math.abs(a.y - b.y) < 44;
        const overlaps = boxes.some((a, i) => boxes.some((b, j) => i < j && touch(a, b)));
        const x = (node) => at.places.get(node).x;
        const forward = nodes.every((node) => [...node.parents].every((parent) => x(parent) < x(node)));
        const isInside = (b) => b.x >= 0 && b.y >= 0 && b.x + 184 <= at.width + 1 && b.y + 44 <= at.height + 1;
        return {overlaps, forward, same: JSON.stringify(boxes) === JSON.stringify([...again.places.values()]),
                inside: boxes.every(isInside)};""",
    )
    assert found == {"overlaps": False, "forward": True, "same": True, "inside": True}


async def test_colours_of_terminals_become_looks_and_everything_else_stays_text(tab: Tab):
    read = "const said = (text) => m.read(text); const plain = (text) => said(text).pieces.map((p) => p.text).join('');"
    assert await computed(tab, "log/ansi.js", read + r"""
        return [plain('\u001b[2J\u001b[10;5Hat'), plain('\u001b]8;;https://evil.example\u0007link\u001b]8;;\u0007'),
                plain('a\u202eb\u0000c\u0007'), said('1%\r2%\r3%').repeats, said('\u001b[1;31mred\u001b[0m').pieces,
                said('\u001b[38;2;1;2;3mx').pieces[0].look, said('\u001b[38;5;208mx').pieces[0].look,
                said('x'.repeat(5000)).isCut]"""
    ) == [
        "at", "link", "a⟨U+202E⟩b^@c^G", 2, [{"text": "red", "look": {"bold": True, "ink": 1}}],
        {"ink": "rgb(1 2 3)"}, {"ink": "rgb(255 135 0)"}, True,
    ]  # fmt: skip


async def test_long_gaps_fold_and_what_differs_is_named_by_its_path(tab: Tab):
    gaps = await computed(
        tab,
        "pages/job_axis.js",
        """
        const at = (s) => new Date(s * 1000).toISOString();
        const run = (from, to) => ({kind: "running", from: at(from), to: at(to)});
        const axis = m.axisOf(0, 1000_000, [run(0, 100), run(900, 1000)]);
        return [axis.gaps.map((gap) => gap.seconds), axis.part(0), axis.part(1000_000), axis.part(50_000) > 0.2]""",
    )
    assert gaps == [[800], 0, 1, True]
    assert await computed(
        tab,
        "diff.js",
        """
        return m.differences({a: 1, b: {c: [1, 2], d: 5}}, {b: {d: 5, c: [1, 3]}, e: null}).map((each) => each.path)""",
    ) == ["a", "b.c[1]", "e"]
    assert await computed(
        tab,
        "log/search.js",
        """
        const of = (n, step) => m.nextOf([5, 9], n, step);
        return [of(0, 1), of(5, 1), of(9, 1), of(5, -1), m.nextOf([], 1, 1)]""",
    ) == [0, 1, 0, 1, -1]
    assert await computed(
        tab,
        "log/heights.js",
        """
        const small = m.measures(m.even(1000), 400), huge = m.measures(m.even(5_000_000), 400);
        const away = Math.abs(huge.first(huge.top(3_000_000)) - 3_000_000);
        return [small.first(small.top(500)), huge.height < 16_000_000, away < 2]""",
    ) == [500, True, True]


async def test_rows_of_different_heights_are_found_among_a_million(tab: Tab):
    found = await computed(
        tab,
        "log/heights.js",
        """
        const rows = new m.Heights(3);
        const told = [rows.set(1, 54), rows.set(1, 54.2), rows.before(2), rows.total];
        rows.grow(1_000_000);
        rows.set(999_999, 36);
        const at = m.measures(rows, 400), back = at.back(500_000, 5);
        return [...told, rows.before(2), rows.total, rows.rowAt(71), rows.rowAt(72), rows.rowAt(rows.total - 1),
                at.first(back), Math.abs(at.within(back, 500_000) - 5) < 1]""",
    )
    assert found == [True, False, 72, 90, 72, 1_000_000 * 18 + 54, 1, 2, 999_999, 500_000, True]
    around = "return [m.withAround([3, 5, 90], 2, 91), m.withAround([1], 0, 9)]"
    assert await computed(tab, "log/filter.js", around) == [[1, 2, 3, 4, 5, 6, 7, 88, 89, 90, 91], [1]]


async def test_pieces_of_a_lane_that_nobody_could_see_become_one(tab: Tab):
    pieces = await computed(
        tab,
        "ui/lanes.js",
        """
        const piece = (state, begins, ends) => ({state, begins, ends, from: begins, to: ends});
        const flicker = range(6, (n) => piece(n % 3 ? "busy" : "idle", 100 + n, 101 + n));
        return m.seen([piece("asleep", 0, 100), ...flicker, piece("asleep", 106, 200), piece("idle", 200, 202)], 5)
            .map((each) => [each.state, each.begins, each.ends, each.because ?? null])""",
    )
    assert pieces == [
        ["asleep", 0, 100, None],
        ["busy", 100, 105, "5 changes"],
        ["busy", 105, 106, None],
        ["asleep", 106, 200, None],
        ["idle", 200, 202, None],
    ]


async def test_an_answer_that_is_cut_off_is_no_empty_answer(tab: Tab):
    said = await computed(
        tab,
        "api.js",
        """
        const fetched = globalThis.fetch;
        globalThis.fetch = async () => new Response('{"items": [');
        try { return await m.call("/jobs").then(() => "taken", (problem) => problem.message); }
        finally { globalThis.fetch = fetched; }""",
    )
    assert said == "the answer of the gateway was cut off"
