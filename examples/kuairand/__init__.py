"""KuaiRand: a week of real short-video impressions; see README.md."""
