"""A plugin of pytest: settings of hypothesis under which the tests of etcd3 0.12.0 run, which are older than these.

Each of their examples runs etcdctl some times, so there are fewer of them than by default. What the tests set by
themselves comes on top of this."""

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("default")
