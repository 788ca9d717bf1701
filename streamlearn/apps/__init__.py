"""Applications: the declarations and folders of streamlearn's users."""

from streamlearn.apps.app import App
from streamlearn.apps.folder import TOPICS, AppFolder, load_app
from streamlearn.apps.module import app_module

__all__ = ["TOPICS", "App", "AppFolder", "app_module", "load_app"]
