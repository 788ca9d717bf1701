"""Applications: the declarations and folders of streamlearn's users."""

from streamlearn.apps.app import App
from streamlearn.apps.folder import AppFolder, app_module, load_app

__all__ = ["App", "AppFolder", "app_module", "load_app"]
