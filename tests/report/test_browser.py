"""The report in a real browser: what it shows, what its controls do, and how fast."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest

import seqfield as sf
from seqfield.report import report_content, write_page
from seqfield.report.columns import THRESHOLDS
from seqfield.report.comparison import compare
from seqfield.report.content import content_of
from seqfield.report.intervals import intervals

from ..support.reports import HOSTILE, invented

webdriver = pytest.importorskip("selenium.webdriver")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the path"
)


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def case():
    """A model, and sequences with hostile words among them."""
    X, y = sf.load_ingredients("test")
    X = [[word for (word,) in row] for row in X]
    model = sf.CRF(scheme="BIO").fit(X[:80], y[:80])
    strange = ["O"] * (len(HOSTILE) - 1) + ["B-" + "z" * 200]
    return model, [*X[80:150], HOSTILE], [*y[80:150], strange]


@pytest.fixture(scope="module")
def page(case, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    content = report_content(*case, title="A <b>bold</b> title", n_boot=50)
    content["learning"] = {
        "sizes": [5, 10, 20],
        "scores": {"token_accuracy": [[0.7, 0.6, 0.75], [0.8, 0.7, 0.85], [0.9, 0.85, 0.95]]},
    }
    write_page(content, path)
    return path.as_uri()


@pytest.fixture
def shown(browser, page):
    """The page, just opened, at the width of a laptop."""
    resize(browser, 1280)
    visit(browser, page)
    return browser


def visit(browser, url, seconds=8.0):
    """Open a report and wait until its list stands."""
    browser.get(url)
    settle(lambda: text(browser, "count") != "", seconds, lambda: browser.get_log("browser"))


def resize(browser, width, height=900):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def text(browser, id_):
    return browser.execute_script("return document.getElementById(arguments[0]).textContent", id_)


def numbers(browser):
    """Numbers of the sequences in the list, from 0."""
    script = "return [...document.querySelectorAll('.about')].map((p) => p.firstChild.textContent)"
    return [int(name.removeprefix("#")) - 1 for name in browser.execute_script(script)]


def choose(browser, id_, value, event="change"):
    browser.execute_script(
        "const node = document.getElementById(arguments[0]);"
        "if (node.type === 'checkbox') node.checked = arguments[1]; else node.value = arguments[1];"
        "node.dispatchEvent(new Event(arguments[2]));",
        id_,
        value,
        event,
    )


def settle(condition, seconds=5.0, why=lambda: "the page did not answer"):
    """Wait for what a page does by and by."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.02)


def quiet(browser):
    """Neither complaints nor requests."""
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def percent(x, digits=1):
    return f"{100 * x:.{digits}f}\u202f%"


# --- what is shown --------------------------------------------------------------------------------


def test_opens_without_complaint_and_without_network(shown, case):
    assert shown.title == "A <b>bold</b> title"
    quiet(shown)
    compared = compare(*case)
    big = shown.execute_script(
        "return document.querySelector('[data-key=token_accuracy] .value').textContent"
    )
    assert big == percent(compared.right.mean())
    assert (
        shown.execute_script("return document.querySelectorAll('main > section[hidden]').length")
        == 0
    )


def test_hostile_words_are_words(shown):
    choose(shown, "search", HOSTILE[0], "input")
    settle(lambda: numbers(shown) == [70])
    words = shown.execute_script(
        "return [...document.querySelectorAll('.token .word')].map((node) => node.textContent)"
    )
    assert words == HOSTILE
    assert shown.execute_script(
        "return window.hurt === undefined && !document.querySelector('img')"
    )
    quiet(shown)


@pytest.mark.parametrize("n_labels", [2, 90])
def test_other_numbers_of_labels(browser, tmp_path, n_labels):
    compared = invented(30, 4, [f"label{k}" for k in range(n_labels)])
    content = content_of(compared, compared.gold, intervals(compared, 5))
    write_page({"title": "", **content}, tmp_path / "r.html")
    visit(browser, (tmp_path / "r.html").as_uri())
    quiet(browser)
    met = len(set(compared.codes) | set(compared.gold_codes))
    rows = browser.execute_script("return document.querySelectorAll('#confusion tbody tr').length")
    assert rows == min(met, 60)
    colours = browser.execute_script(
        "return [...document.querySelectorAll('.swatch')]"
        ".map((node) => getComputedStyle(node).backgroundColor)"
    )
    assert len(set(colours)) == met if n_labels < 50 else len(set(colours)) > 60


def test_sequences_without_labels(browser, case, tmp_path):
    model, X, _ = case
    content = report_content(model, X, [None] * len(X), n_boot=5)
    write_page(content, tmp_path / "r.html")
    visit(browser, (tmp_path / "r.html").as_uri())
    quiet(browser)
    assert len(numbers(browser)) == 50


def test_models_without_probabilities(browser, case, tmp_path):
    model = sf.StructuredPerceptron(random_state=0, max_iter=5).fit(*case[1:])
    write_page(report_content(model, *case[1:], n_boot=5), tmp_path / "r.html")
    visit(browser, (tmp_path / "r.html").as_uri())
    quiet(browser)
    hidden = "return document.getElementById(arguments[0]).hidden"
    assert browser.execute_script(hidden, "confidence")
    assert not browser.execute_script(hidden, "sequences")
    assert len(numbers(browser)) == 50
    assert browser.execute_script("return document.getElementById('second-threshold') === null")


# --- controls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slider", ["threshold", "second-threshold"])
def test_slider(shown, case, slider):
    compared = compare(*case)
    for place in (40, 60, 95):
        choose(shown, slider, place, "input")
        kept = compared.confidence >= THRESHOLDS[place]
        assert float(text(shown, "threshold-value")) == THRESHOLDS[place]
        assert text(shown, "coverage-share") == percent(kept.mean())
        assert text(shown, "coverage-precision") == percent(compared.right[kept].mean(), 2)
        assert text(shown, "coverage-abstained") == str((~kept).sum())
        grey = shown.execute_script(
            "return [...document.querySelectorAll('.token.abstained')].map((n) => +n.dataset.t)"
        )
        drawn = compared.offsets[50]
        assert grey == np.flatnonzero(~kept[:drawn]).tolist()
    quiet(shown)


def test_slider_by_keyboard(shown):
    keys = webdriver.Keys
    slider = shown.find_element("id", "threshold")
    slider.send_keys(keys.END)
    assert text(shown, "threshold-value") == "0.99999"
    slider.send_keys(keys.ARROW_LEFT)
    assert text(shown, "threshold-value") == "0.99998"


def test_filter_by_labels(shown, case):
    compared = compare(*case)
    gold, guess = (compared.labels.index(name) for name in ("B-NAME", "I-NAME"))
    both = (compared.gold_codes == gold) & (compared.codes == guess)
    for values, hits in (
        ({"gold-filter": gold, "predicted-filter": ""}, compared.gold_codes == gold),
        ({"gold-filter": "", "predicted-filter": guess}, compared.codes == guess),
        ({"gold-filter": gold, "predicted-filter": guess}, both),
    ):
        for id_, value in values.items():
            choose(shown, id_, str(value))
        expected = np.flatnonzero(compared.in_row(hits))
        assert numbers(shown) == expected[:50].tolist()
        assert text(shown, "count").startswith(f"{len(expected)} of 71 sequences")
    assert (
        shown.execute_script("return document.querySelectorAll('.token.match').length")
        == both.sum()
    )


def test_confusion_leads_to_the_sequences(shown, case):
    compared = compare(*case)
    shown.execute_script("document.querySelector('#mistakes button').click()")
    a, b = (
        int(shown.execute_script("return document.getElementById(arguments[0]).value", id_))
        for id_ in ("gold-filter", "predicted-filter")
    )
    hits = (compared.gold_codes == a) & (compared.codes == b)
    wrong = compared.gold_codes * 100 + compared.codes
    assert hits.sum() == np.unique(wrong[~compared.right], return_counts=True)[1].max()
    assert numbers(shown) == np.flatnonzero(compared.in_row(hits)).tolist()
    shown.execute_script("document.querySelector('#confusion td.miss').focus()")
    assert "Show the sequences" in text(shown, "confusion-readout")


def test_search_and_only_wrong(shown, case):
    compared = compare(*case)
    choose(shown, "only-wrong", True)
    wrong = np.flatnonzero(compared.in_row(~compared.right))
    settle(lambda: numbers(shown) == wrong[:50].tolist())
    choose(shown, "search", "OIL", "input")
    oil = [i for i in wrong.tolist() if "oil" in " ".join(case[1][i]).lower()]
    settle(lambda: numbers(shown) == oil)
    assert oil


def test_orders(shown, case):
    compared = compare(*case)
    lengths = np.diff(compared.offsets)
    worst = np.minimum.reduceat(compared.confidence, compared.offsets[:-1])
    for order, worth in (
        ("surprise", -compared.log_gold),
        ("mean", -compared.log_gold / lengths),
        ("weakest", -worst),
        ("labelling", -compared.log_shown),
        ("file", -np.arange(71)),
    ):
        choose(shown, "order", order)
        values = worth[numbers(shown)]
        assert (np.diff(values) <= 1e-4).all(), order
        assert values[0] == pytest.approx(worth.max(), abs=1e-4)
        assert len(values) == 50


def test_more(shown):
    shown.execute_script("document.getElementById('more').click()")
    settle(lambda: numbers(shown) == list(range(71)))
    assert shown.execute_script("return document.getElementById('more').parentNode.hidden")


def test_details_of_a_token(shown, case):
    compared = compare(*case)
    t = int(np.flatnonzero(~compared.right)[0])
    shown.execute_script("document.querySelector(`[data-t='${arguments[0]}']`).click()", t)
    said = text(shown, "detail")
    for label in (compared.labels[compared.codes[t]], compared.labels[compared.gold_codes[t]]):
        assert label in said
    assert percent(compared.confidence[t]) in said
    first, second = case[1][0][:2]
    token = shown.find_element("css selector", ".token")
    token.send_keys(webdriver.Keys.ENTER)
    assert text(shown, "detail").startswith(first)
    token.send_keys(webdriver.Keys.ARROW_RIGHT)
    assert text(shown, "detail").startswith(second)
    shown.switch_to.active_element.send_keys(webdriver.Keys.ESCAPE)
    assert shown.execute_script("return document.getElementById('detail').hidden")


def test_reliability_by_label(shown, case):
    compared = compare(*case)
    k = compared.labels.index("B-NAME")
    choose(shown, "reliability-label", str(k))
    assert text(shown, "reliability-readout").startswith(f"{(compared.codes == k).sum()} tokens")
    quiet(shown)


def test_tables_sort(shown):
    order = (
        "return [...document.querySelectorAll('#per-label tbody tr')]"
        ".map((row) => row.children[4].textContent)"
    )
    click = "document.querySelectorAll('#per-label thead button')[4].click()"
    for down in (True, False):
        shown.execute_script(click)
        support = [int(cell) for cell in shown.execute_script(order)]
        assert support == sorted(support, reverse=down)
    state = shown.execute_script("return document.querySelector('#per-label [aria-sort]').ariaSort")
    assert state == "ascending"


def test_theme(shown):
    def background():
        return shown.execute_script("return getComputedStyle(document.body).backgroundColor")

    seen = [background()]
    for _ in range(2):
        shown.find_element("id", "theme").click()
        seen.append(background())
    assert seen[0] == seen[2] != seen[1]


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_no_sideways_scrolling(shown, width):
    resize(shown, width)
    choose(shown, "search", HOSTILE[0], "input")
    settle(lambda: numbers(shown) == [70])
    shown.execute_script("document.querySelector('.token').click()")
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width
    assert shown.execute_script("return document.getElementById('coverage').clientWidth") < width


def test_ten_thousand_sequences(browser, tmp_path):
    compared = invented(10_000, 20, [f"label{k}" for k in range(20)])
    vocabulary = [f"word{k}" for k in range(5000)]
    drawn = np.random.default_rng(0).integers(5000, size=(10_000, 20))
    words = [[vocabulary[k] for k in row] for row in drawn.tolist()]
    content = content_of(compared, words, intervals(compared, 20))
    path = tmp_path / "large.html"
    write_page({"title": "large", **content}, path)
    assert path.stat().st_size < 15e6
    resize(browser, 1280)
    begin = time.monotonic()
    visit(browser, path.as_uri())
    assert text(browser, "count") == "10,000 sequences, 50 shown"
    assert time.monotonic() - begin < 8
    begin = time.monotonic()
    choose(browser, "order", "surprise")
    choose(browser, "predicted-filter", "3")
    n = int((compared.in_row(compared.codes == 3) > 0).sum())
    assert text(browser, "count") == f"{n:,} of 10,000 sequences, 50 shown"
    assert time.monotonic() - begin < 3
    quiet(browser)
