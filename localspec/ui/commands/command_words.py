"""What may follow a command, as far as it is known at this moment; the input completes it.

Nothing here waits: it is asked for with every letter that is typed.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.ui.commands import parameters
from localspec.ui.commands.command_context import CommandContext
from localspec.ui.screens.themes import themes


def names_of_parameters(_app: CommandContext) -> Sequence[str]:
    """What `/set` can change; a value has to follow."""
    return [f"{name} " for name in (*parameters.NAMES, "ctx-size", *parameters.ALSO)]


def names_of_themes(_app: CommandContext) -> Sequence[str]:
    """The themes."""
    return themes()


def names_of_presets(_app: CommandContext) -> Sequence[str]:
    """The system prompts that are kept."""
    return list(parameters.presets())


def ways_to_think(app: CommandContext) -> Sequence[str]:
    """What can be asked of the model's thoughts."""
    session = app.engine.info
    return parameters.ways_to_think(session.dialect.thinking) if session else ()


def names_of_pairs(app: CommandContext) -> Sequence[str]:
    """The pairs that were listed since the start."""
    return [row.name for row in app.pairs().state.shown()]


def files_of_drafts(app: CommandContext) -> Sequence[str]:
    """The models in the folder of the target."""
    return [str(path) for path in app.pairs().beside_target()]
