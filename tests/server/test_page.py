"""The page at `/`, in a browser: over a server with a tiny model, and over answers that servers rarely give."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from browser import chromium, opened
from document_files import paragraph, write_docx
from http_server import served
from imported_later import imported_later
from test_serve_command import serving

from edgekv.binding.model import Model
from edgekv.generation.sampler import Sampler

pytestmark = pytest.mark.nightly
playwright = imported_later("playwright.sync_api")

LIMIT_S = 300
HOSTILE = (
    "<script>document.title = 'taken over'</script><img src=x onerror='alert(1)'> & **bold** `<b>`\n\n- one\n- two"
)
BOOK = " ".join(f"word{i % 97}" for i in range(150))


class Gate:
    """Lets so many tokens be said, and then no more until it is opened."""

    def __init__(self):
        self._tokens = threading.Semaphore(0)
        self._open = threading.Event()
        self._said = itertools.count()

    def let(self, n):
        self._tokens.release(n)

    def open(self):
        self._open.set()
        self._tokens.release()

    def close(self):
        self._open.clear()

    def passes(self, *_):
        """Return whether the model ends here: never while tokens are counted, else after some."""
        if not self._open.is_set():
            assert self._tokens.acquire(timeout=LIMIT_S)
            return False
        return next(self._said) % 12 == 11


@pytest.fixture
def gate(monkeypatch):
    """Replies of letters, without an end that random weights may choose."""
    found, letters = Gate(), itertools.cycle(range(40, 60))
    monkeypatch.setattr(Model, "is_end", found.passes)
    monkeypatch.setattr(Sampler, "sample", lambda *_: next(letters))
    yield found
    found.open()


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(server):
    with served(server) as found:
        yield found


def drop(page, *files):
    """Drop files, (name, content), on the page; at least one is a text."""
    page.evaluate(
        """files => {
            const data = new DataTransfer();
            for (const [name, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name));
            const init = { dataTransfer: data, bubbles: true, cancelable: true };
            for (const kind of ["dragenter", "dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(kind, init));
        }""",
        [[name, list(content)] for name, content in files],
    )
    page.locator("#attached li").first.wait_for()


def say(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def finished(page):
    """Wait for the end of the reply; returns what the status says."""
    page.get_by_role("button", name="Send").wait_for()
    return page.get_by_role("status").text_content()


def figures(page):
    rows = page.locator("#figures div").all()
    return {row.locator("dt").text_content(): row.locator("dd").text_content() for row in rows}


def newly_read(page):
    """Tokens of the last prompt that the server had not read before, as the page says."""
    foot = page.locator("li.assistant .foot").last.text_content()
    read, known = re.search(r"([\d,]+) tokens, ([\d,]+) of them known already", foot).groups()
    return int(read.replace(",", "")) - int(known.replace(",", ""))


# ---- a conversation ----


def test_a_text_is_dropped_asked_about_and_gone_on_with(browser, address, gate):
    with opened(browser, address) as page:
        drop(page, ("notes.txt", BOOK.encode()), ("picture.png", b"\x89PNG\r\n\x1a\n\0"), ("none.txt", b" \n"))
        assert page.get_by_role("alert").text_content() == "picture.png is no text in UTF-8. none.txt is empty."
        assert "notes.txt" in page.get_by_role("list", name="Attached files").text_content()
        say(page, "What is it?")
        gate.let(3)
        reply = page.locator("li.assistant").last
        reply.locator(".said :text-matches('.')").first.wait_for()  # while the model waits for the gate
        assert page.get_by_role("button", name="Stop").is_visible()
        assert reply.get_attribute("aria-busy") == "true"
        page.get_by_role("button", name="Stop").click()
        assert finished(page) == "Stopped."
        stopped = reply.locator(".said").text_content()
        assert stopped

        gate.open()
        say(page, "And then?")
        assert finished(page) == "The reply is complete."
        assert page.locator("li.user .said").all_text_contents() == ["What is it?", "And then?"]
        assert page.locator("li.assistant .said").first.text_content() == stopped
        found = figures(page)
        assert int(found["Tokens seen"].replace(",", "")) > int(found["Tokens kept"].replace(",", "")) > 0
        assert int(found["Tokens evicted"]) > 0
        gauge = page.get_by_role("meter", name="Memory")
        assert 0 < int(gauge.get_attribute("aria-valuenow")) < int(gauge.get_attribute("aria-valuemax")) == 4 << 30
        held, ceiling = (page.locator(part).bounding_box() for part in ("#gauge .held", "#gauge .ceiling"))
        assert held["x"] + held["width"] < ceiling["x"]
        names, held = (page.locator(f"#owners {cell}").all_text_contents() for cell in ("th", "td:nth-child(2)"))
        assert {"Weights", "Cells", "The program"} <= set(names)
        assert sum(map(float, held)) == pytest.approx(int(gauge.get_attribute("aria-valuenow")) / 2**20, abs=0.5)
        assert page.locator("#order").text_content().endswith("cells. All else stays.")

        page.get_by_role("button", name="Show what is kept").click()
        text = page.get_by_role("region", name="The conversation in shades").locator("section").first.locator("p")
        assert text.text_content() == f"[file notes.txt]\n{BOOK}\n\nWhat is it?"
        assert text.locator("span.s0").count() > 0
        page.keyboard.press("Escape")

        page.locator("details.file summary").click()
        assert page.locator("details.file pre").text_content() == BOOK


def test_a_document_is_attached_as_its_text(browser, address, gate, tmp_path):
    gate.open()
    write_docx(tmp_path / "letter.docx", paragraph("The key lies under the stone."))
    with opened(browser, address, expected=["400"]) as page:
        drop(page, ("letter.docx", (tmp_path / "letter.docx").read_bytes()), ("broken.docx", b"PK\x03\x04"))
        page.get_by_role("alert").filter(has_text="broken.docx is not attached. The server refuses this").wait_for()
        say(page, "Where is the key?")
        assert finished(page) == "The reply is complete."
        page.locator("details.file summary").click()
        assert page.locator("details.file pre").text_content().strip() == "The key lies under the stone."


def test_conversations_are_switched_renamed_deleted_and_found_again(browser, address, gate):
    gate.open()
    listed = "#list button"
    with opened(browser, address) as page:
        drop(page, ("notes.txt", BOOK.encode()))
        say(page, "First")
        finished(page)
        page.get_by_role("button", name="New conversation").first.click()
        say(page, "Second")
        finished(page)
        assert page.locator(listed).all_text_contents() == ["Second", "First"]
        page.get_by_label("Message", exact=True).fill("not sent yet")
        page.get_by_role("button", name="First").click()
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Name of this conversation").fill("About <b>notes</b>")
        page.keyboard.press("Enter")
        playwright.expect(page.get_by_role("heading", level=1)).to_have_text("About <b>notes</b>")

        before = page.locator("#messages").inner_text(), figures(page), page.locator("#share").text_content()
        page.reload()
        assert page.get_by_role("heading", level=1).text_content() == "About <b>notes</b>"
        assert (page.locator("#messages").inner_text(), figures(page), page.locator("#share").text_content()) == before
        page.get_by_role("button", name="Second").click()
        assert page.get_by_label("Message", exact=True).input_value() == "not sent yet"

        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert page.locator(listed).count() == 2
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        playwright.expect(page.locator(listed)).to_have_text(["About <b>notes</b>"])
        page.reload()
        assert page.locator(listed).all_text_contents() == ["About <b>notes</b>"]


def test_a_resent_history_costs_its_difference(browser, address, gate):
    gate.open()
    with opened(browser, address) as page:
        drop(page, ("notes.txt", BOOK.encode()))
        say(page, "First")
        finished(page)
        say(page, "Again")
        finished(page)
        assert newly_read(page) < 30


# ---- answers that servers rarely give ----


def told(*chunks):
    return "".join(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks)


def piece(text, **further):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **further}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ERROR = {"error": {"message": "so it is"}}


@contextlib.contextmanager
def scripted(browser, address, *answers, **settings):
    """The page where a server gives these answers in turn: arguments of `Route.fulfill`, or None for no answer."""
    asked, coming = [], iter(answers)

    def answer(route):
        asked.append(route.request)
        found = next(coming)
        if found is None:
            route.abort()
        else:
            route.fulfill(**({"content_type": "text/event-stream"} | found))

    with opened(browser, address, expected=["Failed to load resource"], **settings) as page:
        page.route("**/v1/chat/completions", answer)
        yield page, asked


def test_what_a_model_says_stays_text(browser, address):
    chunks = [piece(character) for character in HOSTILE]
    with scripted(browser, address, {"body": told(*chunks, END, "[DONE]")}) as (page, asked):
        say(page, f"{HOSTILE} it is")
        finished(page)
        said = page.locator("li.assistant .said")
        assert said.locator("p").text_content() == HOSTILE.partition("\n")[0].replace("**", "").replace("`", "")
        assert said.locator("strong").all_text_contents() == ["bold"]
        assert said.locator("code").all_text_contents() == ["<b>"]
        assert said.locator("ul li").all_text_contents() == ["one", "two"]
        assert page.locator("li.user .said").text_content() == f"{HOSTILE} it is"
        assert page.locator("main script, main img, main b").count() == 0
        assert page.get_by_role("heading", level=1).text_content() == HOSTILE.partition("\n")[0][:80]
        assert json.loads(asked[0].post_data)["messages"] == [{"role": "user", "content": f"{HOSTILE} it is"}]


MARKDOWN = {
    "a *b* _c_ **d e** `f*g*`": "a <em>b</em> <em>c</em> <strong>d e</strong> <code>f*g*</code>",
    "snake_case_name 2 * 3 * 4 **": "snake_case_name 2 * 3 * 4 **",
    "```py\nif a:\n    b = '*c*'\n```\nx": "<pre><code data-language=\"py\">if a:\n    b = '*c*'</code></pre><p>x</p>",
    "~~~\n```\nnot closed": "<pre><code>```\nnot closed</code></pre>",
    "1. a\n2. b\n   - c\n   - d\n3. e": "<ol><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ol>",
    "- a\n\n- b\nafter\n\nand": "<ul><li>a</li><li>b\nafter</li></ul><p>and</p>",
    "- [x] a\n- [ ] b": "<ul><li>☑ a</li><li>☐ b</li></ul>",
    "3) a": '<ol start="3"><li>a</li></ol>',
    "# A\nb\nc\n\n#### d": "<h3>A</h3><p>b\nc</p><h6>d</h6>",
    "> a\n> b": "<blockquote><p>a\nb</p></blockquote>",
    "|a|b|\n|-|-:|\n|1|*2*|": '<div class="table"><table><thead><tr><th>a</th><th class="right">b</th></tr></thead>'
    '<tbody><tr><td>1</td><td class="right"><em>2</em></td></tr></tbody></table></div>',
    "[a](https://b.c)": '<a href="https://b.c" target="_blank" rel="noopener noreferrer">a</a>',
    "[a](javascript:b) ![c](http://d)": "[a](javascript:b) ![c](http://d)",
    "<b>a</b> &lt; <i": "&lt;b&gt;a&lt;/b&gt; &amp;lt; &lt;i",
}


def test_markdown(browser, address):
    """Exactly these elements, and every other character as it was written."""
    with opened(browser, address) as page:
        for text, expected in MARKDOWN.items():
            found = page.evaluate(
                """async text => {
                    const { rendered } = await import("/page/markdown.js");
                    const box = document.createElement("div");
                    box.append(...rendered(text));
                    return box.innerHTML.replaceAll(' tabindex="0"', "");
                }""",
                text,
            )
            assert found in (expected, f"<p>{expected}</p>"), text


def whole(*texts, **further):
    return {"body": told(*(piece(text) for text in texts), END, *([further] if further else []), "[DONE]")}


def cut(*texts, before=None):
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    return {"body": told(*([before] if before else []), *(piece(text) for text in texts), end, "[DONE]")}


def sent(request):
    """The messages of a request, as (role, text), or (role, texts)."""
    messages = json.loads(request.post_data)["messages"]
    return [
        (it["role"], it["content"] if isinstance(it["content"], str) else [part["text"] for part in it["content"]])
        for it in messages
    ]


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def test_a_reply_is_made_again_or_gone_on_with(browser, address):
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "timings": {"predicted_per_second": 12.34}}
    answers = (whole("first"), cut("sec", "ond"), whole(" and more", **usage, choices=[]))
    with scripted(browser, address, *answers) as (page, asked):
        say(page, "What?")
        finished(page)
        assert page.get_by_role("button", name="Continue").count() == 0
        press(page, "Try again")
        finished(page)
        assert page.locator("li.assistant .said").all_text_contents() == ["second"]
        press(page, "Continue")
        finished(page)
        assert page.locator("li.assistant .said").all_text_contents() == ["second and more"]
        assert "2 said, 12.3 a second" in page.locator("li.assistant .foot").text_content()
        question = ("user", "What?")
        assert [sent(request) for request in asked] == [[question], [question], [question, ("assistant", "second")]]


def test_a_reply_that_is_gone_on_with_keeps_its_thoughts(browser, address):
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "Two plus two."}}]}
    with scripted(browser, address, cut("fo", before=thought), whole("ur")) as (page, _):
        say(page, "What?")
        finished(page)
        press(page, "Continue")
        finished(page)
        assert page.locator("li.assistant .said").all_text_contents() == ["four"]
        assert page.locator("li.assistant .thought p").all_text_contents() == ["Two plus two."]


def test_a_message_is_edited(browser, address):
    with scripted(browser, address, *(whole(text) for text in ("one", "two", "three"))) as (page, asked):
        drop(page, ("notes.txt", b"Some notes"))
        say(page, "First")
        finished(page)
        say(page, "Second")
        finished(page)
        message = page.get_by_label("Message", exact=True)
        message.fill("typed")
        page.locator("li.user").first.get_by_role("button", name="Edit").click()
        assert message.input_value() == "First"
        assert "notes.txt" in page.get_by_role("list", name="Attached files").text_content()
        press(page, "Keep it as it is")
        assert message.input_value() == "typed"
        assert page.locator("li.user").count() == 2
        page.locator("li.user").first.get_by_role("button", name="Edit").click()
        say(page, "Another")
        finished(page)
        assert page.locator("li.user p.said").all_text_contents() == ["Another"]
        assert page.locator("li.assistant .said").all_text_contents() == ["three"]
        assert sent(asked[-1]) == [("user", ["[file notes.txt]\nSome notes\n", "Another"])]
        assert page.locator("#editing").is_hidden()


def test_a_conversation_has_settings(browser, address):
    with scripted(browser, address, whole("one"), whole("two")) as (page, asked):
        say(page, "What?")
        finished(page)
        press(page, "Settings")
        page.get_by_label("System message").fill("Be brief.")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_label("Longest reply").fill("20")
        page.get_by_label("in mind").fill("Who?")
        press(page, "Save")
        page.reload()
        press(page, "Try again")
        finished(page)
        before, after = (json.loads(request.post_data) for request in asked)
        assert "temperature" not in before
        assert "max_tokens" not in before
        assert before["edgekv"]["focus"] == "What?"
        assert (after["temperature"], after["max_tokens"], after["edgekv"]["focus"]) == (0.5, 20, "Who?")
        assert sent(asked[1]) == [("system", "Be brief."), ("user", "What?")]


def test_conversations_are_sought_exported_and_imported(browser, address, tmp_path):
    with scripted(browser, address, whole("a *reply*"), whole("yes")) as (page, _):
        say(page, "About ships")
        finished(page)
        press(page, "New conversation")
        say(page, "About trees")
        finished(page)
        page.get_by_label("Search conversations").fill("REPLY")
        assert page.locator("#list button").all_text_contents() == [
            "About trees",
            "About ships",
        ]  # the shown one is listed, too
        page.get_by_role("button", name="About ships").click()
        page.get_by_label("Search conversations").fill("ships")
        assert page.locator("#list button").all_text_contents() == ["About ships"]
        with page.expect_download() as text:
            press(page, "Export")
        assert (
            Path(text.value.path()).read_text() == "# About ships\n\n## You\n\nAbout ships\n\n## Reply\n\na *reply*\n"
        )
        with page.expect_download() as found:
            press(page, "Export all")
        file = tmp_path / "conversations.json"
        file.write_bytes(Path(found.value.path()).read_bytes())
        page.evaluate("() => localStorage.clear()")
        page.reload()
        assert page.locator("#list button").count() == 1
        page.get_by_label("Import").set_input_files(file)
        playwright.expect(page.locator("#list button").first).to_have_text("About trees")
        assert page.locator("li.assistant .said").all_text_contents() == ["yes"]
        for broken in ("no JSON", "{}", '{"format": "edgekv conversations 1", "conversations": [{"messages": [{}]}]}'):
            file.write_text(broken)
            page.get_by_label("Import").set_input_files(file)
            page.get_by_role("alert").filter(has_text="conversations.json cannot be imported").wait_for()
            page.evaluate("() => { document.getElementById('notice').textContent = ''; }")


CODE = "def f(x):\n    return '<b>' + x  # <i>\n"


def test_code_is_coloured_and_stays_text(browser, address):
    reply = f"```python\n{CODE}```\n\n```klingon\n{CODE}```\n\n```\n{CODE}```\n"
    with scripted(browser, address, whole(reply)) as (page, _):
        say(page, "How?")
        finished(page)
        known = page.locator("li.assistant code").first
        known.locator(".hl-keyword").first.wait_for()
        assert known.locator(".hl-keyword").all_text_contents() == ["def", "return"]
        assert known.locator(".hl-string").all_text_contents() == ["'<b>'"]
        assert known.locator(".hl-comment").all_text_contents() == ["# <i>"]
        assert page.locator("li.assistant code").all_text_contents() == [CODE.rstrip()] * 3
        assert page.locator("li.assistant code >> nth=1 >> span").count() == 0
        assert page.locator("li.assistant code b, li.assistant code i").count() == 0


def test_replies_and_code_are_copied(browser, address):
    reply = "See:\n\n```\nx = 1\n```\n"
    with scripted(browser, address, whole(reply), permissions=["clipboard-read", "clipboard-write"]) as (page, _):
        say(page, "What?")
        finished(page)
        for name, expected in (("Copy code", "x = 1"), ("Copy", reply)):
            press(page, name)
            page.get_by_role("button", name="Copied").first.wait_for()
            assert page.evaluate("() => navigator.clipboard.readText()") == expected


REFUSALS = [
    (
        {"status": 429, "headers": {"Retry-After": "7"}, "body": json.dumps(ERROR)},
        "The server has too much to do at the moment. It says: so it is Try again in 7 s.",
    ),
    ({"status": 503, "body": json.dumps(ERROR)}, "The model is not there at the moment. It says: so it is"),
    ({"status": 413, "body": "no JSON"}, "This is more than the server takes at once."),
    ({"status": 418, "body": json.dumps(ERROR)}, "The server refuses this (status 418). It says: so it is"),
    (None, "The server does not answer. Is it still running?"),
    ({"body": told(piece("half"))}, "The connection ended before the reply did."),
    ({"body": told(piece("half"), ERROR)}, "The reply failed. The server says: so it is"),
]


@pytest.mark.parametrize(("answer", "message"), REFUSALS, ids=lambda value: str(value)[:30])
def test_a_failure_is_said_and_nothing_is_lost(browser, address, answer, message):
    whole = {"body": ": ping\r\n\r\n" + told(piece("whole"), END, "[DONE]").replace("\n", "\r\n")}
    with scripted(browser, address, answer, whole) as (page, asked):
        drop(page, ("notes.txt", b"Some notes"))
        say(page, "What?")
        assert finished(page) == page.locator(".failure").text_content() == message
        page.reload()
        assert page.locator(".failure").text_content() == message
        page.get_by_role("button", name="Try again").click()
        assert finished(page) == "The reply is complete."
        assert page.locator("li.assistant .said").all_text_contents() == ["whole"]
        bodies = [json.loads(request.post_data)["messages"] for request in asked]
        parts = [{"type": "text", "text": text} for text in ("[file notes.txt]\nSome notes\n", "What?")]
        assert bodies == [[{"role": "user", "content": parts}]] * 2


def test_a_key_is_asked_for_and_kept_by_the_tab(browser, open_server, gate):
    gate.open()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(stack.enter_context(open_server(api_keys=("the key",)))))
        page = stack.enter_context(opened(browser, address, expected=["401"]))
        key = page.get_by_role("dialog").get_by_label("API key")
        key.fill("another")
        key.press("Enter")
        page.get_by_role("alert").filter(has_text="wants an API key").wait_for()
        say(page, "What?")
        key.fill("the key")
        key.press("Enter")
        page.get_by_role("status").filter(has_text="The reply is complete.").wait_for()
        page.reload()
        say(page, "And?")
        assert finished(page) == "The reply is complete."
        assert page.evaluate("() => JSON.stringify(localStorage)").count("the key") == 0


def test_where_the_browser_has_no_room_the_conversation_goes_on(browser, address, gate):
    gate.open()
    with opened(browser, address) as page:
        page.evaluate("() => localStorage.setItem('other', 'x'.repeat(5 * 2 ** 20 - 200))")
        say(page, BOOK)
        finished(page)
        page.get_by_role("alert").filter(has_text="no room left").wait_for()
        say(page, "And?")
        assert finished(page) == "The reply is complete."
        assert page.locator("li.assistant").count() == 2


def test_what_is_more_than_the_server_takes_is_not_sent(browser, open_server, gate):
    gate.open()
    with open_server(max_body=4096) as application, served(application) as address, opened(browser, address) as page:
        page.get_by_text("The model is").wait_for()
        drop(page, ("notes.txt", b"a b c " * 800))
        say(page, "What?")
        assert "has 5.0 kB, and the server takes 4.1 kB" in page.get_by_role("alert").text_content()
        assert page.get_by_label("Message", exact=True).input_value() == "What?"
        page.get_by_role("button", name="Remove notes.txt").click()
        say(page, "What?")
        assert finished(page) == "The reply is complete."


# ---- the default model, in a process of its own ----


def test_the_ceiling_of_a_server_holds_while_a_file_is_read(browser, default_model):
    """A file is dropped and asked about, its reading stopped; then it goes on, and reads only what is new."""
    text = (Path(__file__).parents[2] / "examples" / "oz.txt").read_bytes()[:3000]
    options = ("--memory", "256MiB", "--budget", "256", "--block", "64", "--threads", "2", "-m", default_model)
    with serving(*options) as (_, url, _), opened(browser, f"{url}/") as page:
        drop(page, ("oz.txt", text))
        say(page, "Where does Dorothy live?")
        page.get_by_text(re.compile(r"^\d+ of \d{3} tokens$")).wait_for()
        page.get_by_role("button", name="Stop").click()
        assert finished(page) == "Stopped."
        page.get_by_role("button", name="Try again").click()
        assert finished(page) == "The reply is complete."
        say(page, "With whom?")
        assert finished(page) == "The reply is complete."
        found = {name: int(n.replace(",", "")) for name, n in figures(page).items()}
        assert found["Tokens seen"] > 600
        assert found["Budget, in cells"] == 256
        assert found["Tokens kept"] <= 256 + 64
        assert 0 < newly_read(page) < 100
        gauge = page.get_by_role("meter", name="Memory")
        assert (
            100 << 20
            < int(gauge.get_attribute("aria-valuenow"))
            < int(gauge.get_attribute("aria-valuemax"))
            == 256 << 20
        )


# ---- for everybody ----


def test_a_keyboard_is_enough(browser, address, gate):
    with opened(browser, address) as page:
        page.keyboard.type("One")  # the message has the focus from the beginning
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        gate.let(2)
        page.locator("li.assistant .said :text-matches('.')").first.wait_for()
        page.keyboard.press("Escape")
        assert finished(page) == "Stopped."
        assert page.locator("li.user .said").text_content() == "One\ntwo"
        assert page.evaluate("() => document.activeElement.id") == "message"
        page.keyboard.type("Stopped before a word is said\n")
        page.keyboard.press("Escape")
        assert finished(page) == "Stopped."
        gate.open()
        page.keyboard.type("Go on\n")
        assert finished(page) == "The reply is complete."
        assert page.get_by_role("button", name="Try again").count() == 1  # only the last reply is asked for again


def test_two_tabs_show_what_each_adds_and_keep_what_is_typed(browser, address, gate):
    gate.open()
    with opened(browser, address) as page:
        say(page, "First")
        finished(page)
        other = page.context.new_page()
        other.goto(address)
        other.get_by_label("Message", exact=True).fill("typed here")
        say(page, "Second")
        finished(page)
        playwright.expect(other.locator("li.user")).to_have_count(2)
        playwright.expect(other.locator("li.assistant .foot").last).to_contain_text("said")
        assert other.locator("#messages").inner_text() == page.locator("#messages").inner_text()
        assert other.get_by_label("Message", exact=True).input_value() == "typed here"
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        playwright.expect(other.locator("li.user")).to_have_count(0)


def test_conversations_are_kept_by_a_server_that_may_keep_them(browser, open_server, gate, tmp_path):
    gate.open()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(stack.enter_context(open_server(conversations_dir=tmp_path))))
        page = stack.enter_context(opened(browser, address))
        say(page, "First")
        finished(page)
        other = stack.enter_context(opened(browser, address))  # another browser
        listed = other.locator("#list button")
        playwright.expect(listed.filter(has_text="First")).to_have_count(1)
        listed.filter(has_text="First").click()
        playwright.expect(other.locator("li.assistant .foot")).to_contain_text("said")
        assert other.locator("#messages").inner_text() == page.locator("#messages").inner_text()
        assert page.evaluate("() => Object.keys(localStorage).filter((name) => name.includes('conversation'))") == []

        say(other, "Second")
        finished(other)
        page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")  # the tab is looked at again
        playwright.expect(page.locator("li.user")).to_have_count(2)
        page.reload()
        playwright.expect(page.locator("li.user")).to_have_count(2)
        assert page.locator("#messages").inner_text() == other.locator("#messages").inner_text()

        third = page.context.new_page()  # a tab of the first browser
        third.goto(address)
        third.locator("#list button").filter(has_text="First").click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        playwright.expect(third.locator("li.user")).to_have_count(0)
        assert list(tmp_path.glob("*.json")) == []


def test_conversations_of_the_browser_stay_in_it(browser, open_server, gate, tmp_path):
    gate.open()
    with contextlib.ExitStack() as stack:
        application = stack.enter_context(open_server(conversations_dir=tmp_path))
        address = stack.enter_context(served(application))
        settings = application.state.settings
        application.state.settings = dataclasses.replace(settings, conversations_dir=None)
        page = stack.enter_context(opened(browser, address))
        say(page, "Here")
        finished(page)
        application.state.settings = settings
        page.reload()
        playwright.expect(page.locator("li.user")).to_have_count(1)
        say(page, "Still here")
        finished(page)
        assert list(tmp_path.iterdir()) == []
        page.get_by_role("button", name="New conversation").first.click()
        say(page, "There")
        finished(page)
        page.reload()
        playwright.expect(page.locator("#list button")).to_have_text(["There", "Here"])
        assert len(list(tmp_path.iterdir())) == 1


def test_a_server_that_cannot_keep_a_conversation_says_so(browser, open_server, gate, tmp_path):
    gate.open()
    folder = tmp_path / "talks"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(stack.enter_context(open_server(conversations_dir=folder))))
        page = stack.enter_context(opened(browser, address, expected=["503"]))
        folder.rmdir()
        say(page, "First")
        assert finished(page) == "The reply is complete."
        page.get_by_role("alert").filter(has_text="The server does not keep what is new here").wait_for()
        folder.mkdir()
        say(page, "Second")
        finished(page)
        page.reload()
        playwright.expect(page.locator("li.user")).to_have_count(2)


def test_a_screen_reader_is_told_whole_sentences(browser, address):
    chunks = [piece(text) for text in ("Yel", "low bri", "ck. It i", "s said", " so")]
    with scripted(browser, address, {"body": told(*chunks, END, "[DONE]")}) as (page, _):
        say(page, "What?")
        finished(page)
        spoken = page.get_by_role("log", name="Reply")
        assert spoken.locator("p").all_text_contents() == ["Yellow brick. ", "It is said so"]


VIEWS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 640}},
    "still": {"reduced_motion": "reduce", "forced_colors": "active"},
}


@pytest.mark.parametrize("settings", VIEWS.values(), ids=VIEWS)
def test_nothing_stands_in_the_way(browser, address, gate, settings):
    """Axe finds nothing, with a conversation and with each dialog open; and nothing is wider than the screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    gate.open()

    def check():
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")

    with opened(browser, address, **settings) as page:
        check()
        drop(page, ("notes.txt", BOOK.encode()))
        say(page, "What?")
        finished(page)
        check()
        for name in ("Show what is kept", "Settings", "Rename", "Delete"):
            if settings == VIEWS["narrow"] and name != "Show what is kept":
                page.get_by_role("button", name="More", exact=True).click()
                check()
            page.get_by_role("button", name=name, exact=True).click()
            check()
            page.keyboard.press("Escape")
        if settings == VIEWS["narrow"]:
            above = page.evaluate("() => document.querySelector('main').getBoundingClientRect().top / innerHeight")
            assert above < 0.2  # what stands above the conversation
            page.get_by_role("button", name="Conversations").click()
            check()
