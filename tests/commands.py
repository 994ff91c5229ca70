"""Commands, run in the process of a test."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from aioload.cli._app import app

__all__ = ["aio", "told"]


def aio(*arguments: object, status: int = 0) -> Result:
    """Run a command, which must end with this status."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def told(*arguments: object, status: int = 0) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    return json.loads(aio(*arguments, "--json", status=status).stdout)  # type: ignore[no-any-return]
