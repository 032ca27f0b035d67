"""The command `maira` in the process of the tests."""

from typer.testing import CliRunner, Result

from maira.cli.main import app


def maira(*words: object, code: int | None = 0) -> Result:
    """Run a command and check its exit code, unless that may be any; an error of the command is raised."""
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert code in (None, result.exit_code), result.output
    return result
