"""The sections of the gateway's doors, through which the clients of other systems come in.

A door whose section is there, even an empty one, is open.
"""

from accsd.settings.section import Section


class JoblibSettings(Section):
    """[gateway.joblib]: what ZnDraw's clients of zndraw-joblib call."""


class SeqpulseSettings(Section):
    """[gateway.seqpulse]: what SeqPulse's client calls in CI."""


class JudgeSettings(Section):
    """[gateway.judge]: what clients of an online judge call."""


class OrdinautSettings(Section):
    """[gateway.ordinaut]: what Ordinaut's clients call."""


class McpSettings(Section):
    """[gateway.mcp]: what assistants call by the Model Context Protocol."""
