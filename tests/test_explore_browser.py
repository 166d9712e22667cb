"""The explorations in a browser: what is clicked, typed and drawn, and the numbers that come of it.

Headless Chromium drives the page; everything read from it is compared with the library.
"""

import json
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import data, models, nn
from fusednn.cli.saved import Saved
from fusednn.explore import attention, digits, rotation, server
from fusednn.explore.fields import Fields

selenium = pytest.importorskip(
    "selenium", reason="selenium drives the browser: pip install '.[browser]'"
)
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip(
        "needs the programs chromium and chromedriver: apt-get install chromium chromium-driver",
        allow_module_level=True,
    )

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a sandbox needs rights that containers and root do not have
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-prefers-reduced-motion",  # no colours on their way to others
    "--window-size=1280,800",
)


@contextmanager
def serving(heads, folder=None):
    with server.Server(0, digits.Digits(0, folder), heads) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(attention.Attention(0), tmp_path_factory.mktemp("cache")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """One exploration, opened afresh."""

    def __init__(self, browser, url, name, state="ready"):
        self.browser, self.url, self.name = browser, url, name
        self.requests = []
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get_log("browser")
        browser.get(f"{url}#{name}")
        WebDriverWait(browser, 20).until(lambda b: self.section.is_displayed())
        self.wait(state)

    @property
    def section(self):
        return self.browser.find_element(By.ID, self.name)

    def wait(self, state="ready"):
        """Until the numbers shown are those of what was last changed."""
        WebDriverWait(self.browser, 20, 0.02).until(
            lambda b: self.section.get_attribute("data-state") == state
        )

    def all(self, selector):
        return self.section.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        (found,) = self.all(selector)
        return found

    def part(self, name, inner=""):
        return self.all(f'[data-part="{name}"] {inner}'.strip())

    def values(self, selector):
        """The numbers behind the cells that a selector finds, to the last bit."""
        script = (
            "return [...document.getElementById(arguments[0]).querySelectorAll(arguments[1])]"
            ".map((cell) => Number(cell.dataset.value))"
        )
        return self.browser.execute_script(script, self.name, selector)

    def read(self, part):
        return self.values(f'[data-part="{part}"] [data-value]')

    def shown(self, part):
        """The numbers as a visitor reads them."""
        cells = self.part(part, ".cell")
        return [float(cell.text.replace("\N{MINUS SIGN}", "-")) for cell in cells]

    def type(self, field, text):
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)
        self.wait()

    def set(self, name, value):
        """A control of the form."""
        self.type(self.one(f"[name={name}]"), str(value))

    def choose(self, name, value):
        Select(self.one(f"select[name={name}]")).select_by_value(value)
        self.wait()

    def click(self, selector):
        self.one(selector).click()
        self.wait()

    def requested(self):
        """All requests that the browser has sent for this page."""
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"])
        return self.requests

    def sent(self):
        """The last question that the page has asked the server."""
        questions = [one for one in self.requested() if one["url"].endswith(f"/api/{self.name}")]
        return json.loads(questions[-1]["postData"])

    @property
    def where(self):
        return self.one("[data-part=where]").text


@pytest.fixture
def opened(browser, served):
    """Opens an exploration; afterwards the console must be empty, and all requests have stayed."""
    pages = []

    def open_page(name):
        pages.append(Page(browser, served.url, name))
        return pages[0]

    yield open_page
    (page,) = pages
    assert browser.get_log("browser") == []
    urls = {request["url"] for request in page.requested()}
    assert any(url.startswith(f"{served.url}api/") for url in urls)
    assert {url for url in urls if not url.startswith((served.url, "data:"))} == set()


# ---- the explorations ----------------------------------------------------------------------------


def test_a_sequence_step_by_step(opened):
    page = opened("convolution")
    x, w = np.array([0.0, 0, 0, 1, 0, 1, 1, 1, 0, 0]), np.array([1.0, -1, 1])

    def convolved(**options):
        return F.conv1d(x[None, None], w[None, None], **options)[0, 0].tolist()

    assert page.read("output") == page.shown("output") == convolved() == [0, 1, -1, 2, 0, 1, 0, 1]
    assert page.where == "position 1 of 8"
    fields = page.part("input", "input")
    page.type(fields[2], "2.5")
    x[2] = 2.5
    assert page.read("output") == page.shown("output") == convolved()
    for step in range(3):
        assert page.read("window") == x[step : step + 3].tolist()
        assert page.read("products") == (x[step : step + 3] * w).tolist()
        assert page.read("sum") == [convolved()[step]]
        under = ["under" in field.get_attribute("class") for field in fields]
        assert under == [step <= i < step + 3 for i in range(10)]
        page.click("[data-go=next]")
    assert page.where == "position 4 of 8"
    page.click("[data-go=last]")
    assert page.where == "position 8 of 8"
    page.part("output", "button")[4].click()
    assert page.where == "position 5 of 8"
    slider = page.one("[name=position]")
    slider.send_keys(Keys.ARROW_LEFT)
    assert page.where == "position 4 of 8"
    page.type(page.part("kernel", "input")[0], "-3")
    w[0] = -3
    assert page.read("output") == convolved()
    page.click("[name=flip]")
    assert page.read("output") == convolved(flip_kernel=True)
    assert page.read("used") == w[::-1].tolist()
    page.set("padding", 2)
    page.set("stride", 3)
    assert page.read("output") == convolved(flip_kernel=True, padding=2, stride=3)
    assert len(page.part("input", ".pad")) == 4
    page.set("size", 4)
    w = np.append(w, 0)
    assert page.read("output") == convolved(flip_kernel=True, padding=2, stride=3)


def test_a_picture_step_by_step(opened):
    page = opened("convolution")
    page.click("[name=dims][value='2']")
    x = np.array([float(one.get_attribute("value")) for one in page.part("input", "input")])
    x = x.reshape(5, 5)
    w = np.array([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]])

    def convolved(**options):
        return F.conv2d(x[None, None], w[None, None], **options)[0, 0]

    assert page.read("output") == [4, 3, 4, 2, 4, 3, 2, 3, 4] == convolved().ravel().tolist()
    page.type(page.part("input", "input")[6], "-7")
    x[1, 1] = -7
    page.set("padding", 1)
    page.set("stride", 2)
    expected = convolved(padding=1, stride=2)
    assert page.read("output") == expected.ravel().tolist()
    page.part("output", "button")[4].click()
    assert page.where == "position 5 of 9: row 3, column 3"
    assert page.read("window") == x[1:4, 1:4].ravel().tolist()
    assert page.read("products") == (x[1:4, 1:4] * w).ravel().tolist()
    assert page.read("sum") == [expected[1, 1]]
    page.set("rows", 3)
    x = x[:3]
    assert page.read("output") == convolved(padding=1, stride=2).ravel().tolist()


def test_what_cannot_be_is_said(opened):
    page = opened("convolution")
    field = page.part("input", "input")[0]
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE)
    page.wait("error")
    status = page.one("[role=status]")
    assert status.text == "input[0] is empty, expected a number of at most 1000000"
    assert page.browser.get_log("browser")[0]["message"].endswith("400 (Bad Request)")
    page.type(field, "1")
    assert status.text == ""
    assert page.read("output")[0] == 1


def test_mirror(opened):
    page = opened("mirror")
    x, w = np.array([0.0, 1, 0, 0]), np.array([1.0, 2])

    def read(name):
        return page.values(f"[data-map='{name}'] [data-value]")

    def mirrored(combine):
        layer = nn.MirrorConv1d(1, 1, 2, bias=False, combine=combine, dtype=np.float64)
        layer.load_state_dict({"weight": w[None, None]})
        return [layer(a[None, None]).numpy()[0, 0].tolist() for a in (x, x[::-1])]

    def alone(kernel):
        return [F.conv1d(a[None, None], kernel[None, None])[0, 0].tolist() for a in (x, x[::-1])]

    def check(combine):
        assert [read("kernel map"), read("kernel flipped")] == alone(w)
        assert [read("left-right map"), read("left-right flipped")] == alone(w[::-1])
        assert [read("combined map"), read("combined flipped")] == mirrored(combine)
        assert read("combined flipped") == read("combined map")[::-1]

    check("max")
    page.type(page.all("input[aria-label='kernel 1']")[0], "-4")
    w[0] = -4
    page.type(page.all("input[aria-label='input 3']")[0], "3")
    x[2] = 3
    for combine in ("max", "sum", "mean"):
        page.choose("combine", combine)
        check(combine)
    verdicts = [one.get_attribute("data-follows") for one in page.all(".verdict")]
    assert verdicts == ["false", "false", "true"]
    before = read("combined map")
    page.click("[data-go=flip]")
    x = x[::-1]
    check("mean")
    assert read("combined map") == before[::-1]


def test_mirror_of_a_picture(opened):
    page = opened("mirror")
    page.click("[name=dims][value='2']")
    assert [one.get_attribute("data-follows") for one in page.all(".verdict")][-1] == "true"
    page.choose("flip", "vertical")
    assert [one.get_attribute("data-follows") for one in page.all(".verdict")][-1] == "false"
    page.choose("axis", "both")
    assert [one.get_attribute("data-follows") for one in page.all(".verdict")][-1] == "true"
    assert len(page.all(".verdict")) == 5
    layer = nn.MirrorConv2d(1, 1, 2, bias=False, axis="both", combine="max", dtype=np.float64)
    layer.load_state_dict({"weight": np.array([[[[1.0, 0], [0, 2]]]])})
    x = np.array([[1.0, 2, 0], [0, 1, 3], [2, 1, 0]])
    expected = layer(x[None, None]).numpy().ravel().tolist()
    assert page.values("[data-map='combined map'] [data-value]") == expected


def test_rotation(opened):
    page = opened("rotation")
    image = np.array(
        [one.get_attribute("aria-pressed") == "true" for one in page.part("image", "button")], float
    ).reshape(7, 7)
    kernel = np.array([[1.0, -1, -1], [1, -1, -1], [1, 1, 1]])

    def score(picture):
        return F.relu(F.conv2d(picture[None, None], kernel[None, None], padding=1)).max()

    def check(turns):
        scores = [score(np.rot90(image, turns + k)) for k in range(4)]
        assert page.values("[data-part=views] figure [data-value]") == scores
        assert page.values("[data-pooled=mean]") == pytest.approx([np.mean(scores)])
        assert page.values("[data-pooled=max]") == [np.max(scores)]
        return page.values("[data-pooled]")

    upright = check(0)
    page.click("[data-turn='90']")
    assert check(1) == upright
    page.part("image", "button")[8].click()
    page.wait()
    image[1, 1] = 1 - image[1, 1]
    page.type(page.part("kernel", "input")[4], "2")
    kernel[1, 1] = 2
    check(1)
    page.click("[data-turn='45']")
    assert "turned by 135°" in page.one("[data-part=angle]").text
    expected = rotation.compute(
        Fields(
            {
                "image": image.tolist(), "angle": 135, "network": "filter",
                "kernel": kernel.tolist(),
            }
        )
    )  # fmt: skip
    assert page.values("[data-part=views] figure [data-value]") == expected["scores"]
    page.one("summary").click()
    rows = np.reshape(page.read("table"), (8, 3))
    np.testing.assert_array_equal(
        rows, [[turn[key] for key in ("score", "mean", "max")] for turn in expected["turns"]]
    )
    page.choose("network", "random")
    page.set("weights", 7)
    pooled = page.values("[data-pooled]")
    page.click("[data-turn='90']")
    np.testing.assert_allclose(page.values("[data-pooled]"), pooled, rtol=1e-12)


@pytest.fixture
def with_digits():
    try:
        data.digits()
    except data.MissingDataError as error:
        pytest.skip(str(error))


def test_a_digit_is_drawn(with_digits, opened, served):
    page = opened("digits")
    canvas = page.one("canvas")
    stroke = ActionChains(page.browser, duration=20).move_to_element_with_offset(canvas, -60, -80)
    stroke.click_and_hold().move_by_offset(120, 0).move_by_offset(-40, 90).move_by_offset(-30, 90)
    stroke.release().perform()
    page.wait()
    asked = page.sent()
    assert len(asked["strokes"]) == 1
    assert len(asked["strokes"][0]) >= 4
    expected = served.computes["/api/digits"](Fields(asked))
    assert expected["answer"] == 7
    assert page.read("scores") == expected["probabilities"]
    assert page.one(".bars span.best:not([data-value])").text == "7"
    for layer, (number, found) in enumerate(
        zip((8, 8, 8, 16, 16, 16), expected["layers"], strict=True)
    ):
        buttons = page.all(f"[data-map^='{layer} ']")
        assert len(buttons) == number
        buttons[3].click()
        assert page.read("numbers") == np.ravel(found["maps"][3]).tolist()
    shares = page.browser.execute_script(
        "return [...document.querySelectorAll('#digits [data-part=picture] i')]"
        ".map((pixel) => parseFloat(pixel.style.getPropertyValue('--share')))"
    )
    np.testing.assert_allclose(shares, 100 * np.ravel(expected["picture"]), atol=0.06)
    page.click("[data-go=clear]")
    page.all("[data-part=samples] button")[4].click()
    page.wait()
    assert page.sent() == {"sample": 4, "number": 0}
    assert page.one(".bars span.best:not([data-value])").text == "4"


def test_a_digit_is_drawn_by_keys(with_digits, opened, served):
    page = opened("digits")
    keys = ActionChains(page.browser, duration=0).click(page.one("[data-go=clear]"))
    keys.send_keys(" ").send_keys(Keys.ARROW_DOWN * 15).send_keys(" ").perform()
    page.wait()
    asked = page.sent()
    line = np.array(asked["strokes"])
    assert line.shape == (1, 16, 2)
    assert (line[0, :, 0] == 0.5).all()
    assert served.computes["/api/digits"](Fields(asked))["answer"] == 1
    assert page.one(".bars span.best:not([data-value])").text == "1"


def test_attention(opened):
    page = opened("attention")
    page.set("text", "the cat saw the dog")
    words = ["the", "cat", "saw", "the", "dog"]
    assert [one.text for one in page.part("tokens", "button")] == words
    assert len(page.part("heads", "table")) == 4
    explored = attention.Attention(0)

    def check(causal=False, positions=True):
        fields = {"text": " ".join(words), "causal": causal, "positions": positions}
        expected = explored.compute(Fields(fields))
        weights = np.array(expected["weights"])
        assert page.read("heads") == weights.ravel().tolist()
        for i in (1, 3):
            page.part("tokens", "button")[i].click()
            rows = page.values("[data-part=row] td.cell")
            assert rows == weights[:, i].ravel().tolist()
            sums = page.values("[data-part=row] .total-sum")
            assert sums == [row[i] for row in expected["sums"]]
            np.testing.assert_allclose(sums, 1, atol=1e-6)
            assert [one.text for one in page.all("[data-part=row] .total-sum")] == ["1"] * 4
        return weights

    check()
    page.click("[name=causal]")
    assert not np.triu(check(causal=True), 1).any()
    page.click("[name=causal]")
    page.click("[name=positions]")
    np.testing.assert_allclose(
        check(positions=False)[:, 0], check(positions=False)[:, 3], atol=1e-6
    )
    page.part("tokens", "button")[0].send_keys(Keys.ARROW_RIGHT)
    assert page.one("[data-part=tokens] [aria-checked=true]").text == "cat"


def test_attention_of_a_trained_network(browser):
    fn.manual_seed(0)
    gpt = models.GPT(vocab_size=7, block_size=12, n_layer=2, n_head=2, n_embd=8).eval()
    run = Saved("gpt", "letters", gpt, data.CharTokenizer("The dog"), None)
    with serving(attention.Attention(0, run)) as running:
        page = Page(browser, running.url, "attention")
        ids = run.tokens.encode("The dog")
        maps = list(fn.analysis.attention_maps(gpt, ids[None]).values())
        for layer in (2, 1):
            page.choose("layer", str(layer))
            assert page.read("heads") == maps[layer - 1].astype(float).ravel().tolist()
        chips = [one.text for one in page.part("tokens", "button")]
        assert chips == ["T", "h", "e", "\N{OPEN BOX}", "d", "o", "g"]
        assert "a GPT trained on letters" in page.one(".lead").text
        assert not page.one("[name=causal]").is_displayed()
        page.one("[name=text]").send_keys("s")
        page.wait("error")
        assert "'s'" in page.one("[role=status]").text


def test_what_is_missing_is_said(browser):
    def missing(fields):
        raise digits.Unavailable("pip install 'fusednn[demo]'")

    with serving(attention.Attention(0)) as running:
        running.computes = {**running.computes, "/api/digits": missing}
        page = Page(browser, running.url, "digits", "error")
        assert page.one("[role=status]").text == "pip install 'fusednn[demo]'"
        url = running.url
    browser.execute_script("location.hash = '#mirror'")
    page.name = "mirror"
    page.wait("error")
    assert page.one("[role=status]").text.startswith("The server has ended")
    assert url in browser.current_url


# ---- the page as a whole -------------------------------------------------------------------------


def test_the_menu_leads_to_every_exploration(opened, browser):
    page = opened("convolution")
    for name in ("mirror", "rotation", "attention", "convolution"):
        browser.find_element(By.CSS_SELECTOR, f"nav a[href='#{name}']").click()
        page.name = name
        page.wait()
        assert page.section.is_displayed()
        assert len([one for one in page.browser.find_elements(By.CSS_SELECTOR, "main > section")
                    if one.is_displayed()]) == 1  # fmt: skip
        assert browser.find_element(By.CSS_SELECTOR, "nav [aria-current]").text.lower() == name
    assert f"fusednn {fn.__version__}: {fn.cpu_isa()} kernels" in browser.page_source


@pytest.mark.parametrize("name", ["convolution", "mirror", "rotation", "attention"])
def test_nothing_is_wider_than_the_screen_and_everything_has_a_name(opened, browser, name):
    page = opened(name)
    nameless = """
      return [...document.querySelectorAll("input, select, button, table.grid, [role=img]")]
        .filter((one) => one.checkVisibility() && !(one.labels?.length || one.textContent.trim()
          || one.getAttribute("aria-label")))
        .map((one) => one.outerHTML)"""
    assert browser.execute_script(nameless) == []
    try:
        for width in (1280, 390):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.section.is_displayed()


def test_both_schemes_are_readable(opened, browser):
    """Contrast of text on the strongest colours (WCAG 2: at least 4.5)."""
    page = opened("mirror")
    script = """
      const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
      const ink = canvas.getContext("2d", {willReadFrequently: true});
      const light = (colour) => {
        ink.fillStyle = colour; ink.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...ink.getImageData(0, 0, 1, 1).data].map((v) =>
          (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      return [...document.querySelectorAll("#mirror .cell, .lead, .notes, #scheme, nav a")]
        .map((one) => {
          const style = getComputedStyle(one);
          let below = one;
          const clear = "rgba(0, 0, 0, 0)";
          while (getComputedStyle(below).backgroundColor === clear) below = below.parentElement;
          const pair = [light(style.color), light(getComputedStyle(below).backgroundColor)];
          return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        });"""
    page.choose("combine", "sum")
    page.type(page.all("input[aria-label='kernel 1']")[0], "-4")
    schemes = set()
    for _ in range(2):
        contrasts = browser.execute_script(script)
        assert min(contrasts) >= 4.5
        schemes.add(browser.find_element(By.TAG_NAME, "body").value_of_css_property("color"))
        browser.find_element(By.ID, "scheme").click()
    assert len(schemes) == 2
