"""What is taken out of a report, and that what helps stays in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.explain.redact import REDACTED, redact

SECRET = "s3cr3tV4lue99"


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"DB_PASSWORD: '{SECRET}'",
        f"userPassword: {SECRET}",
        f"passwordHash={SECRET}",
        f"PASSWD={SECRET}",
        f'{{"keyPassphrase": "{SECRET}"}}',
        f"passcode: {SECRET}",
        f"passkey: {SECRET}",
        f"pass={SECRET}",
        f"DB_PASS={SECRET}",
        f"db-pass: {SECRET}",
        f'{{"dbPass": "{SECRET}"}}',
        f"PASS_2: {SECRET}",
        f'{{"apiToken": "{SECRET}"}}',
        json.dumps({"reason": json.dumps({"client_secret": SECRET})}),
        f"https://bob:{SECRET}@registry.example/x",
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}==",
        f"eyJhbGciOi.{SECRET}.{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        json.dumps(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"),
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f"bob:$2y$05${SECRET}abcdefghijklmnop",
    ],
)
def test_secrets_go(text):
    assert SECRET not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "XID 79: GPU has fallen off the bus",
        '{"uuid": "GPU-8f6c2e1a-0000-0000-0000-000000000000", "pci": "0000:1b:00.0"}',
        'metrics:\n  key: "/etc/tls/key.pem"  # file /etc/gpuplugin/config.yaml, line 3\n',
        "topologyManagerPolicy: single-numa-node",
        "flags:\n  plugin:\n    passDeviceSpecs: false  # default\n",
        '{"passDeviceSpecs": true, "PassDeviceSpecs": true}',
        "flag --pass-device-specs: true",
        "PASS_DEVICE_SPECS=true",
        "passthrough: vfio, bypass: 1, BYPASS=1, compass: n, probes passed: 3",
    ],
)
def test_what_helps_stays(text):
    assert redact(text) == text


@given(
    st.text("abcXYZ019+/_-", min_size=8, max_size=40), st.sampled_from(["password", "token", "SECRET_KEY", "apiKey"])
)
def test_json_stays_json_and_says_nothing_of_the_value(value, name):
    cleaned = redact(json.dumps({"a": 1, f"my_{name}": value, "b": [2]}))
    assert json.loads(cleaned) == {"a": 1, f"my_{name}": REDACTED, "b": [2]}
