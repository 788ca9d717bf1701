"""The Kubernetes objects of an application: printed by `streamlearn manifest`, and written as the Helm chart."""

__all__: list[str] = []
