"""Applications: the declarations and folders of streamlearn's users."""

from streamlearn.apps.app import App
from streamlearn.apps.folder import TOPICS, AppFolder, app_module, load_app

__all__ = ["TOPICS", "App", "AppFolder", "app_module", "load_app"]
