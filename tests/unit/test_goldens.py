"""Names that people's dashboards, alerts and scripts rely on."""

import ast
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from accsd.metrics import Metrics
from tests.support.goldens import compare

ROOT = Path(__file__).parents[2]
_LEVELS = {"debug", "info", "warning", "error"}


def test_the_commands_and_settings_are_the_golden_ones():
    pages = [ROOT / "docs" / "reference" / name for name in ("commands.md", "settings.md")]
    compare("reference", (f"{page.name} {sha256(page.read_bytes()).hexdigest()}" for page in pages))


def test_the_metrics_are_the_golden_ones():
    metrics = Metrics(services=["a"], roles=["b"])
    metrics.started("a")
    text = metrics.render().decode()
    compare(
        "metrics",
        (
            f"{family.type} {sample.name} {sorted(label for label in sample.labels)}"
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ),
    )


def test_the_actions_of_the_log_are_the_golden_ones():
    compare("log_actions", _actions())


def _actions() -> Iterator[str]:
    for file in sorted((ROOT / "accsd").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name() | ast.Attribute(), attr=level),
                    args=[ast.Constant(value=str(action)), *_],
                ) if level in _LEVELS and "log" in ast.unparse(node.func):
                    yield action
                case _:
                    pass
