"""Where metrics are served, and by which certificate."""

import pytest

from gpuplugin.config import Config, load
from gpuplugin.config.rules import host_and_port
from gpuplugin.errors import ConfigError


def test_nothing_listens_unless_asked_to():
    assert not Config().metrics.enabled


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (":9400", (None, 9400)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("node.example:65535", ("node.example", 65535)),
    ],
)
def test_addresses(text, where):
    assert host_and_port(text) == where
    assert load(None, {"DCGM_EXPORTER_LISTEN": text}, {}).metrics.address == text


@pytest.mark.parametrize("text", ["9400", ":", "host:", ":port", ":65536", "::1:80", "[::1:80", ":-1", ":²"])
def test_what_is_no_address_is_refused_with_what_is_one(text):
    with pytest.raises(ConfigError) as refused:
        load(None, {}, {"metrics-address": text})
    assert "allowed: an address and a port such as 127.0.0.1:9400, or :9400 for all addresses" in str(refused.value)


@pytest.mark.parametrize(("set_", "lacking"), [("certificate", "metrics.key"), ("key", "metrics.certificate")])
def test_tls_takes_a_certificate_and_its_key(set_, lacking):
    with pytest.raises(ConfigError) as refused:
        load(None, {}, {f"metrics-{set_}": "/tls/file"})
    assert [problem.key for problem in refused.value.problems] == [lacking]


def test_dcgm_exporters_list_may_be_named_by_its_own_variable():
    assert load(None, {"DCGM_EXPORTER_COLLECTORS": "/etc/custom.csv"}, {}).metrics.collectors == "/etc/custom.csv"
