"""Models, health and properties that a server reports."""

from __future__ import annotations


def test_models(ask):
    (model,) = ask("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert ask(f"/v1/models/{model['id']}").json() == model
    assert ask("/v1/models/another").json()["error"]["code"] == "model_not_found"


def test_health_and_props(ask, server):
    assert ask("/health").json() == {"status": "ok"}
    props = ask("/props")
    assert props.json()["budget"] == 64
    assert props.json()["ceiling_bytes"] == 4 << 30
    assert props.json()["policy"] == "keydiff"
    assert str(server.state.pool.runtime.plan.model.parent) not in props.text
