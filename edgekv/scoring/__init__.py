"""Policies on plain arrays, without a model: scores, budgets and selections."""

from .arrays import budgets, score, select

__all__ = ["budgets", "score", "select"]
