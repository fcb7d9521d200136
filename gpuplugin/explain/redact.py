"""Takes out of a text what nobody else should read, before it leaves the node in a report.

Nothing secret is put into a report in the first place: values of the environment, files that settings name and other
vendors' documents stay out. This is the second line, for what somebody wrote into a name, a path or an error's text.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "[redacted]"

_ALONE: Final = r"(?:(?<![a-z])pass|(?-i:(?<=[a-z0-9])Pass))(?![a-z]|[_-]device[_-]specs)"
"""``pass`` where it is a word of its own (``DB_PASS``, ``dbPass``), and not in ``passDeviceSpecs`` or ``bypass``."""
_WORD: Final = (
    rf"(?:pass(?:word|wd|phrase|code|[_-]?key)|{_ALONE}|secret|token|api[_-]?key|private[_-]?key|access[_-]?key|"
    r"credentials?|cookie)"
)
_PATTERNS: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"),  # a JSON web token
    re.compile(r"(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)"),  # user and password in a URL
    re.compile(r"(?i)(?<=\bbearer )\s*[^\s\"',;]+"),
    re.compile(r"(?i)(?<=\bbasic )\s*[A-Za-z0-9+/]{6,}={0,2}"),
    re.compile(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{20,}"),  # bcrypt, as files of users hold it
)
_VALUE: Final = re.compile(
    rf"""(?ix) ( [\w.-]*{_WORD}[\w.-]* \\?["']? \s* [:=] \s* ) ( \\?"[^"]*" | '[^']*' | [^\s,;&}}\]"']+ )"""
)


def redact(text: str) -> str:
    """Give the text with each secret replaced by `REDACTED`. It errs towards taking out too much."""
    for pattern in _PATTERNS:
        text = pattern.sub(REDACTED, text)
    return _VALUE.sub(lambda found: f"{found[1]}{_quoted(found[2])}", text)


def _quoted(value: str) -> str:
    mark = value[0] if value[0] in "\"'" else '\\"' if value.startswith('\\"') else ""
    return f"{mark}{REDACTED}{mark}"
