"""What people set, from file, environment and flags, as one frozen struct; or every reason why it is refused.

Importing this must stay cheap: the daemon does it before anything else.
"""

from gpuplugin.config.health import HealthChecks
from gpuplugin.config.load import Loaded, load, load_with_sources
from gpuplugin.config.settings import Config

__all__ = ["Config", "HealthChecks", "Loaded", "load", "load_with_sources"]
