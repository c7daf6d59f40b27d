"""Drive the built pages in a headless browser, from the file system and from a server, as a reader would."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from servinglab.course import explorer, quiz
from servinglab.web import strings
from test_book import build_small_book

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
CHAPTER = "chapters/01_night_kitchen.html"
FULL_STOP = "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(book: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(book))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.fixture(params=["file", "server"])
def root(request: pytest.FixtureRequest, book: Path) -> str:
    """Where the book starts: an address of the file system or of a local server."""
    return book.as_uri() if request.param == "file" else request.getfixturevalue("server")


class Reader:
    """One reader's browser: pages opened in it share a storage; what goes wrong is collected."""

    def __init__(self, browser: Browser, root: str, **options: Any) -> None:
        self.root = root
        self.wrong: list[str] = []
        self.context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 900}), **options)
        self.context.on("request", self._request)
        self.context.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))
        self.context.on("console", self._console)
        self.context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))

    def _request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.root}/", "data:", "blob:")):
            self.wrong.append(f"outside: {request.url}")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def open(self, path: str = CHAPTER) -> Page:
        page = self.context.new_page()
        page.goto(f"{self.root}/{path}", wait_until="load")
        if page.locator("script[src*='tex-chtml.js']").count():
            page.wait_for_function("MathJax.startup.promise")
            page.evaluate("MathJax.startup.promise")
        return page


@pytest.fixture
def reader(browser: Browser, root: str) -> Iterator[Reader]:
    reader = Reader(browser, root)
    yield reader
    reader.context.close()
    assert reader.wrong == []


@pytest.fixture
def file_reader(browser: Browser, book: Path) -> Iterator[Reader]:
    reader = Reader(browser, book.as_uri())
    yield reader
    reader.context.close()
    assert reader.wrong == []


def _pages(book: Path) -> list[str]:
    pages = sorted(str(path.relative_to(book)) for path in (book / "chapters").glob("*.html"))
    assert CHAPTER in pages
    return pages


def test_every_page_is_whole(reader: Reader, book: Path) -> None:
    """No request outside, no console error (the fixture looks), every formula set, every image loaded."""
    for path in _pages(book):
        page = reader.open(path)
        formulas = page.locator("span.math, div.math").count()
        assert page.locator("mjx-container").count() >= formulas, path
        if path == CHAPTER:
            assert formulas > 3
        text = page.evaluate(
            """() => {
                const copy = document.querySelector('article').cloneNode(true);
                copy.querySelectorAll('pre, code, mjx-container, script').forEach((node) => node.remove());
                return copy.textContent;
            }"""
        )
        assert not re.search(r"\$(?!\d)", text), path  # a price may stay: $3.76
        assert "\\(" not in text and "\\frac" not in text, path
        assert page.locator("mjx-merror").count() == 0, path
        broken = page.evaluate("[...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)")
        assert broken == [], path
        page.close()


def test_the_search_finds_a_page(reader: Reader) -> None:
    page = reader.open("search.html?q=throughput")
    page.wait_for_selector("#search-results a")
    links = page.locator("#search-results a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    assert any("01_night_kitchen.html" in link for link in links)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(browser: Browser, book: Path, scheme: Any) -> None:
    reader = Reader(browser, book.as_uri(), viewport={"width": 360, "height": 740}, color_scheme=scheme)
    for path in _pages(book):
        page = reader.open(path)
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.evaluate(FULL_STOP)
        wide = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
        assert max(wide[:2]) <= wide[2] == 360, path
        over = page.evaluate(
            """() => [...document.querySelectorAll('.sl-component, .sl-quiz')]
                .filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.outerHTML.slice(0, 80))"""
        )
        assert over == [], path
    reader.context.close()
    assert reader.wrong == []


def test_components_are_readable_in_the_dark(browser: Browser, book: Path) -> None:
    """Text against its background: a contrast of at least 4.5, in both themes."""
    for scheme in ("light", "dark"):
        reader = Reader(browser, book.as_uri(), color_scheme=scheme)
        page = reader.open()
        worst = page.evaluate(
            """() => {
                const light = (rgb) => {
                    const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
                        .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                };
                const paper = (node) => {
                    for (let at = node; at; at = at.parentElement) {
                        const color = getComputedStyle(at).backgroundColor;
                        if (!/, 0\\)$|transparent/.test(color)) return color;
                    }
                    return 'rgb(255, 255, 255)';
                };
                const texts = '.sl-says, .sl-question p, .sl-verdict, .sl-component :is(label, button, summary), '
                    + '.sl-counters, .sl-legend span, .sl-unit, .sl-quiz button, .sl-readout span';
                return [...document.querySelectorAll(texts)].filter((n) => n.textContent.trim()).map((node) => {
                    const [a, b] = [light(getComputedStyle(node).color), light(paper(node))].sort((x, y) => y - x);
                    return [(a + 0.05) / (b + 0.05), node.className || node.tagName];
                }).sort((x, y) => x[0] - y[0])[0];
            }"""
        )
        assert worst[0] >= 4.5, (scheme, worst)
        reader.context.close()


# --- the animation ----------------------------------------------------------------------------------------------------


def _places(page: Page) -> list[str]:
    """Where each order is drawn, lane by lane."""
    return page.eval_on_selector_all(
        "[data-sl=kitchen] .sl-ticket", "all => all.map((t) => `${t.dataset.place} ${t.style.transform}`)"
    )


def _time(page: Page) -> float:
    return float(page.get_attribute("[data-sl=kitchen]", "data-time") or "nan")


def test_the_kitchen_plays_and_pauses_by_keyboard(reader: Reader) -> None:
    page = reader.open()
    kitchen = page.locator("[data-sl=kitchen]").first
    assert _time(page) == 0
    before = _places(page)
    play = kitchen.get_by_role("button", name="Play")
    play.focus()
    page.keyboard.press("Space")
    page.wait_for_function("Number(document.querySelector('[data-sl=kitchen]').dataset.time) > 1")
    kitchen.get_by_role("button", name="Pause").press("Space")
    paused = _time(page)
    assert _places(page) != before
    page.evaluate(FULL_STOP)
    assert _time(page) == paused


def test_the_kitchen_steps_scrubs_and_ends_where_the_runs_end(file_reader: Reader) -> None:
    page = file_reader.open()
    kitchen = page.locator("[data-sl=kitchen]").first
    data = json.loads(kitchen.locator("script").first.text_content() or "")
    forward = kitchen.get_by_role("button", name="Next event")
    forward.press("Enter")
    first = _time(page)
    assert first == pytest.approx(min(order["arrival"] for order in data["lanes"][0]["orders"]), abs=1e-3)
    forward.press("Enter")
    assert _time(page) > first
    kitchen.get_by_role("button", name="Previous event").press("Enter")
    assert _time(page) == first
    assert "1 in line" in (kitchen.locator("[role=status]").text_content() or "")

    scrub = kitchen.get_by_role("slider", name="Time")
    scrub.press("End")
    assert _time(page) == pytest.approx(data["duration"], abs=1e-3)
    assert {place.split()[0] for place in _places(page)} == {"served"}
    for lane, drawn in zip(data["lanes"], kitchen.locator(".sl-lane").all(), strict=True):
        orders = lane["orders"]
        rate = len(orders) / lane["last"]
        latency = sum(order["finish"] - order["arrival"] for order in orders) / len(orders)
        counters = drawn.locator(".sl-counters").text_content() or ""
        assert f"{len(orders)}/{len(orders)}" in counters
        assert f"{rate:.2f} /s" in counters and f"{latency:.2f} s" in counters
    scrub.press("Home")
    assert _time(page) == 0
    assert {place.split()[0] for place in _places(page)} == {"away"}


def test_the_kitchen_counts_what_is_where(file_reader: Reader) -> None:
    """At every tenth of the time the picture shows what the run's own moments say."""
    page = file_reader.open()
    data = json.loads(page.locator("[data-sl=kitchen] script").first.text_content() or "")
    scrub = page.locator("[data-sl=kitchen] input[type=range]").first
    for tenth in range(1, 11):
        time = scrub.evaluate(
            """(input, share) => {
                input.value = share * input.max;
                input.dispatchEvent(new Event('input'));
                return Number(input.value);
            }""",
            tenth / 10,
        )
        for lane, drawn in zip(data["lanes"], page.locator(".sl-lane").all(), strict=True):
            places = drawn.locator(".sl-ticket").evaluate_all("all => all.map((t) => t.dataset.place)")
            blocks = drawn.locator(".sl-ticket").evaluate_all(
                "all => all.map((t) => t.querySelectorAll('.sl-block:not(.sl-block-done)').length)"
            )
            for order, place, left in zip(lane["orders"], places, blocks, strict=True):
                still = sum(end > time + 1e-9 for end in order["ends"])
                cooking = order["scheduled"] <= time + 1e-9 < order["leaves"]
                assert left == still
                assert (place in ("pot", "done")) == cooking
                assert (place == "done") == (cooking and still == 0)


def test_without_motion_the_kitchen_jumps_from_event_to_event(browser: Browser, book: Path) -> None:
    reader = Reader(browser, book.as_uri(), reduced_motion="reduce")
    page = reader.open()
    data = json.loads(page.locator("[data-sl=kitchen] script").first.text_content() or "")
    moments = {0.0} | {start for lane in data["lanes"] for start, _ in lane["steps"]}
    for lane in data["lanes"]:
        for order in lane["orders"]:
            moments |= {order["arrival"], order["finish"], *order["ends"]}
    page.get_by_role("button", name="Play").first.click()
    page.wait_for_function("Number(document.querySelector('[data-sl=kitchen]').dataset.time) > 0")
    page.get_by_role("button", name="Pause").first.click()
    assert min(abs(_time(page) - moment) for moment in moments) < 1e-3
    assert page.locator(".sl-ticket").first.evaluate("t => getComputedStyle(t).transitionDuration") == "0s"
    reader.context.close()


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_the_timeline_steps_and_says_what_its_states_say(reader: Reader) -> None:
    """Chapter 03's three requests and a fourth: whole at first, then from event to event, by keyboard."""
    page = reader.open("chapters/03_static_dynamic_continuous.html")
    steps = page.locator("[data-sl=steps]").first
    data = json.loads(steps.locator("script").first.text_content() or "")
    assert float(steps.get_attribute("data-time") or "nan") == pytest.approx(data["duration"], abs=1e-3)
    steps.get_by_role("slider", name="Time").press("Home")
    status, forward = steps.locator("[role=status]"), steps.get_by_role("button", name="Next event")
    seen = set()
    for _ in range(100):
        at = float(steps.get_attribute("data-time") or "nan")
        if at >= data["duration"] - 1e-3:
            break
        for lane in data["lanes"]:
            number = next((k for k, (a, b) in enumerate(lane["steps"]) if a <= at + 1e-6 < b), None)
            if number is not None:
                states = [row["states"][number] for row in lane["rows"]]
                want = f"{lane['name']} Step {number + 1}: {states.count('w')} waiting, 0 prompt tokens, "
                assert f"{want}{states.count('d')} decoding." in (status.text_content() or "")
                seen.add((lane["name"], number))
        forward.press("Enter")
    assert seen == {(lane["name"], k) for lane in data["lanes"] for k in range(len(lane["steps"]))}
    for lane, drawn in zip(data["lanes"], steps.locator(".sl-lane").all(), strict=True):
        states = "".join(row["states"] for row in lane["rows"])
        assert drawn.locator(".sl-decode").count() == states.count("d")
        assert (drawn.locator(".sl-stays").count() > 0) == ("h" in states)


def test_the_timeline_s_sliders_choose_a_run(file_reader: Reader) -> None:
    page = file_reader.open("chapters/03_static_dynamic_continuous.html")
    steps = page.locator("[data-sl=steps]").nth(1)
    data = json.loads(steps.locator("script").first.text_content() or "")
    budget, first = data["sliders"]
    picked = [budget["start"], first["start"]]
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        steps.get_by_role("slider", name="max_num_batched_tokens").press(key)
        picked[0] += 1 if key == "ArrowRight" else -1
        lane = data["lanes"][picked[0] * len(first["stops"]) + picked[1]]
        assert f"/{len(lane['steps'])}" in (steps.locator(".sl-counters").text_content() or "")
        reads = sum(row["states"].count("p") for row in lane["rows"])
        assert steps.locator("rect.sl-prefill").count() == reads
    assert steps.locator(".sl-pauses").count() == 0
    steps.get_by_role("slider", name="prefill_first").press("End")
    assert steps.locator(".sl-pauses").count() > 0


# --- the explorer -----------------------------------------------------------------------------------------------------


def _says(view: dict[str, Any]) -> list[str]:
    words = strings()["en"]
    return ["".join(words.get(piece, piece) for piece in pieces) for pieces in view["says"] if pieces]


def test_the_explorer_redraws_from_the_library_s_numbers(reader: Reader) -> None:
    page = reader.open()
    part = page.locator("[data-sl=explorer]").first
    data = json.loads(part.locator("script").first.text_content() or "")
    at = [each["start"] for each in data["sliders"]]

    def curves() -> list[str | None]:
        return [curve.get_attribute("d") for curve in part.locator("path.sl-curve").all()]

    moves = [(axis, "ArrowLeft") for axis in range(5)] + [(3, "Home"), (3, "End"), (4, "Home"), (4, "End")]
    for axis, move in moves:
        texts = data["sliders"][axis]["texts"]
        slider = part.get_by_role("slider").nth(axis)
        before, old = curves(), explorer.at_setting(data, at)
        slider.press(move)
        at[axis] = {"Home": 0, "End": len(texts) - 1}.get(move, at[axis] - 1)
        now = explorer.at_setting(data, at)
        assert slider.get_attribute("aria-valuetext") == texts[at[axis]]
        assert part.locator(".sl-readout span").all_text_contents() == _says(now)
        assert part.get_attribute("data-state") == now["state"]
        if [chart["curves"] for chart in now["charts"]] != [chart["curves"] for chart in old["charts"]]:
            assert curves() != before, f"slider {axis} moves no curve"


def test_every_explorer_draws_each_curve_of_its_start(file_reader: Reader, book: Path) -> None:
    for name in _pages(book):
        page = file_reader.open(name)
        for part in page.locator("[data-sl=explorer]").all():
            data = json.loads(part.locator("script").first.text_content() or "")
            view = explorer.at_setting(data, [each["start"] for each in data["sliders"]])
            shown = part.locator("path.sl-curve").all()
            assert len(shown) == sum(len(chart["curves"]) for chart in view["charts"])
            assert all("NaN" not in (curve.get_attribute("d") or "") for curve in shown)
            assert part.locator(".sl-readout span").all_text_contents() == _says(view)
        page.close()


# --- guess and quiz ---------------------------------------------------------------------------------------------------


def test_a_guess_comes_back_after_a_reload(reader: Reader) -> None:
    page = reader.open()
    field = page.get_by_label("Your guess").first
    recall = page.locator("[data-sl=recall]").first
    answer = json.loads(recall.locator("script").text_content() or "")
    assert "haven't" in (recall.text_content() or "")
    for no_number in ("a dozen", "1e999"):
        field.fill(no_number)
        field.press("Enter")
        assert "Type a number" in (page.locator("[data-sl=guess] [role=status]").first.text_content() or "")
        assert "haven't" in (recall.text_content() or "")
    guess = float(answer["shown"]) - 5
    field.fill(f"{guess:g}")
    field.press("Enter")
    assert f"You guessed {guess:g}" in (recall.text_content() or "")
    page.close()

    page = reader.open()
    assert page.get_by_label("Your guess").first.input_value() == f"{guess:g}"
    recalled = page.locator("[data-sl=recall]").first.text_content() or ""
    assert f"You guessed {guess:g}" in recalled
    assert f"5 {answer['unit']} below the computed {answer['shown']}" in recalled


def test_a_guess_works_where_storage_is_refused(browser: Browser, book: Path) -> None:
    reader = Reader(browser, book.as_uri())
    reader.context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    page = reader.open()
    field = page.get_by_label("Your guess").first
    field.fill("12")
    field.press("Enter")
    assert "only while the page is open" in (page.locator("[data-sl=guess] [role=status]").first.text_content() or "")
    assert "You guessed 12" in (page.locator("[data-sl=recall]").first.text_content() or "")
    reader.context.close()
    assert [line for line in reader.wrong if "servinglab" in line] == []


def _drawn(page: Page, question: quiz.Question) -> quiz.Variant:
    """The variant that the page shows now, as the library has it."""
    part = page.locator(f".sl-question[data-key={question.key}]")
    variant = question.variants[int(part.get_attribute("data-variant") or "")]
    texts = part.locator(".sl-fresh").evaluate_all("all => all.map((n) => [n.dataset.name, n.textContent])")
    assert all(variant.shown()[name] == text for name, text in texts)
    return variant


def test_the_quiz_is_graded_by_keyboard(reader: Reader) -> None:
    page = reader.open()
    root = page.locator(".sl-quiz").first
    questions = quiz.load(root.get_attribute("data-quiz") or "")
    score = root.locator(".sl-score [role=status]")
    assert score.text_content() == "0 of 5 right"
    for done, question in enumerate(questions):
        part = root.locator(f".sl-question[data-key={question.key}]")
        variant = _drawn(page, question)
        wrong = question.choices or tuple(variant.wrong)
        hint = next(key for key in wrong if key != variant.answer)
        for key, reply in ((hint, variant.wrong.get(hint)), (None, variant.answer)):
            if question.choices:
                part.locator(f"input[value={key or reply}]").focus()
                page.keyboard.press("Space")
                part.get_by_role("button", name="Check").press("Enter")
            else:
                field = part.get_by_label("Your answer")
                field.fill(f"{reply!r}")
                field.press("Enter")
            shown = part.locator(".sl-hint.sl-shown").evaluate_all("all => all.map((n) => n.dataset.key)")
            assert shown == ([key] if key else []), question.key
            assert part.get_attribute("data-state") == ("wrong" if key else "right"), question.key
        why = part.locator("details.sl-why")
        assert why.get_attribute("open") is None
        why.locator("summary").press("Enter")
        assert why.get_attribute("open") is not None
        assert score.text_content() == f"{done + 1} of 5 right"
    first = root.locator(".sl-question").first
    shown = first.locator("p").nth(1).text_content()
    first.get_by_role("button", name="New numbers").press("Enter")
    assert first.locator("p").nth(1).text_content() != shown
    assert score.text_content() == "4 of 5 right"
    field = first.get_by_label("Your answer")
    field.fill("1,5")
    field.press("Enter")
    assert "Type a number" in (first.locator("[role=status]").text_content() or "")
    root.get_by_role("button", name="New numbers for all").press("Enter")
    assert score.text_content() == "0 of 5 right"


def test_the_page_grades_as_the_library_does(file_reader: Reader) -> None:
    page = file_reader.open()
    cases = []
    for question in quiz.load("ch01"):
        edge = 1 + question.tolerance
        for index, variant in enumerate(question.variants):
            if question.choices:
                replies = list(question.choices)
            else:
                numbers = [variant.answer, *variant.wrong.values()]
                replies = [repr(n * f) for n in numbers for f in (1, edge - 1e-6, edge + 1e-6, 2 - edge + 1e-6)]
            for reply in replies:
                grade = question.grade(variant, reply)
                cases.append([question.key, index, reply, grade.right, grade.hint])
    differ = page.evaluate(
        """(cases) => {
            const questions = JSON.parse(document.querySelector('.sl-quiz > script').textContent);
            return cases.filter(([key, index, reply, right, hint]) => {
                const question = questions.find((q) => q.key === key);
                const grade = ServingLab.grade(question, question.variants[index], reply);
                return grade.right !== right || grade.hint !== hint;
            });
        }""",
        cases,
    )
    assert len(cases) > 1000
    assert differ == []


def test_controls_have_names(file_reader: Reader) -> None:
    """Every control of the components has a label, and every drawing a text."""
    page = file_reader.open()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('.sl-component, .sl-quiz')].flatMap((part) => [
            ...[...part.querySelectorAll('input, select')].filter((n) => !n.labels.length && !n.ariaLabel),
            ...[...part.querySelectorAll('button')].filter((n) => !n.textContent.trim()),
            ...[...part.querySelectorAll('svg')].filter((n) => !n.getAttribute('aria-label') && !n.ariaHidden),
        ]).map((n) => n.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


def test_a_keyboard_reader_sees_where_she_is(file_reader: Reader) -> None:
    """Tab goes through the chapter, and whatever has the focus shows it."""
    page = file_reader.open()
    unseen, stops = [], 0
    for _ in range(400):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => {
                const node = document.activeElement, style = getComputedStyle(node);
                const shown = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
                return [node.tagName, shown, node.outerHTML.slice(0, 100)];
            }"""
        )
        if at[0] == "BODY":
            break
        stops += 1
        unseen += [] if at[1] else [at[2]]
    assert stops > 100
    assert unseen == []


def test_sliders_are_tall_enough_for_a_finger(file_reader: Reader) -> None:
    """24 pixels, the least that WCAG 2.2 asks of a target."""
    heights = file_reader.open().locator("input[type=range]").evaluate_all("all => all.map((n) => n.offsetHeight)")
    assert len(heights) >= 6 and min(heights) >= 24


def test_the_words_follow_the_page_s_language(browser: Browser, book: Path, tmp_path: Path) -> None:
    """A page in Chinese shows the components' Chinese words."""
    text = (book / CHAPTER).read_text(encoding="utf-8").replace('<html lang="en"', '<html lang="zh-CN"', 1)
    chinese = book / "chapters" / "zh_trial.html"
    chinese.write_text(text, encoding="utf-8")
    try:
        reader = Reader(browser, book.as_uri())
        page = reader.open("chapters/zh_trial.html")
        for name in ("播放", "记下来", "全部换一组数"):
            assert page.get_by_role("button", name=name).count() >= 1, name
        assert page.get_by_role("slider", name="到达率 λ").count() == 1
        assert "单/秒" in (page.locator(".sl-question .sl-unit").first.text_content() or "")
        assert "静态批处理" in (page.locator("[data-sl=kitchen] .sl-lane").first.text_content() or "")
        reader.context.close()
    finally:
        chinese.unlink()


def test_linked_widgets_of_ipywidgets_work_without_a_network(browser: Browser, repo: Path, tmp_path: Path) -> None:
    """The vendored widget manager and its shim: no chapter needs them yet, and one that does gets them."""
    page_body = r"""
Beside a formula, $x^2$.

```{code-cell} ipython3
import ipywidgets
slider = ipywidgets.IntSlider(description="$B$", value=3)
field = ipywidgets.IntText(value=3)
ipywidgets.jslink((slider, "value"), (field, "value"))
ipywidgets.VBox([slider, field])
```
"""
    html = build_small_book(repo, tmp_path / "small", page_body)
    reader = Reader(browser, html.as_uri())
    page = reader.open("chapters/index.html")
    handle = page.locator(".widget-slider .noUi-handle")
    handle.press("ArrowRight")
    assert page.locator("input[type=number]").input_value() == "4"
    reader.context.close()
    assert [line for line in reader.wrong if "strict mode" not in line] == []  # a warning of the manager's own
