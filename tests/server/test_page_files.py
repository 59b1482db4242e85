"""The files of the page, as a server gives them."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("starlette")
from edgekv.generation.request import MAX_TOKENS
from edgekv.server.page import routes


def test_each_file_has_its_type_and_is_sent_again_only_where_it_changed(ask):
    assert {route.path for route in routes} >= {"/", "/page/main.js", "/page/style.css", "/page/icon.svg"}
    for route in routes:
        found = ask(route.path)
        suffix = route.path.rpartition(".")[2]
        types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
        expected = types.get(suffix, "text/html")
        assert found.headers["content-type"].split(";")[0] == expected
        assert found.headers["cache-control"] == "no-cache"
        assert found.headers["x-content-type-options"] == "nosniff"
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        again = ask(route.path, headers={"If-None-Match": f'"other", W/{found.headers["etag"]}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", found.headers["etag"])
        assert ask(route.path, headers={"If-None-Match": '"other"'}).status_code == 200
        # no address of another server, but the name of a format
        if not route.path.startswith(("/page/marked", "/page/highlight")):  # licences name the authors
            assert set(re.findall(rb"https?://[^\"' ]+", found.content)) <= {b"http://www.w3.org/2000/svg"}


def test_the_page_names_the_longest_reply_of_the_server(ask):
    assert f'<input id="longest" type="number" min="1" step="1" placeholder="{MAX_TOKENS:,}">' in ask("/").text


@pytest.mark.parametrize(
    "path", ["/page/", "/page/absent.js", "/page/__init__.py", "/page/..%2f__init__.py", "/index.html"]
)
def test_there_is_nothing_else(ask, path):
    assert ask(path).status_code == 404
