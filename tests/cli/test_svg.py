"""The picture of the node: well-formed, complete, nothing on top of anything, and as agreed for two machines."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from gpuplugin.cli import svg_parts, topo
from gpuplugin.cli.look import look
from gpuplugin.cli.svg import branches, draw
from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.serving.pod_resources import PluginDevice, PodResources
from gpuplugin.sim import machine

NAMESPACE = "{http://www.w3.org/2000/svg}"
CARDS = {"gpu", "held", "fault", "nic"}


def cards(root):
    """Boxes of devices, without the legend's."""
    return [box for box in root.iter(f"{NAMESPACE}rect") if box.get("class") in CARDS and float(box.get("width")) > 16]


def texts(root):
    return [text.text for text in root.iter(f"{NAMESPACE}text")]


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-1v"])
def test_the_picture_is_as_agreed(cli, golden, name):
    ran = cli("topo", "--svg", "-", "--simulate", name)
    assert (ran.status, ran.err) == (0, "")
    golden(f"topo-{name}.svg", ran.out)


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_can_be_drawn_with_each_device_once_and_none_over_another(name):
    found = look(name)
    root = ET.fromstring(draw(found))
    boxes = [tuple(float(box.get(key)) for key in ("x", "y", "width", "height")) for box in cards(root)]
    assert len(boxes) == len(found.gpus) + len(found.nics)
    for (x, y, w, h), (a, b, c, d) in combinations(boxes, 2):
        assert x + w <= a or a + c <= x or y + h <= b or b + d <= y
    _, _, width, height = map(float, root.get("viewBox").split())
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    for gpu in found.gpus:
        assert texts(root).count(f"GPU {gpu.index}") == 1
    assert sorted(i for branch in branches(found) for i in branch.gpus) == list(range(len(found.gpus)))


def test_it_has_words_for_those_who_cannot_see_it():
    found = look("hgx-h100")
    gpu = found.gpus[2]
    root = ET.fromstring(draw(found, {gpu.uuid: "default/train"}))
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{NAMESPACE}title").text == "8 x NVIDIA H100 80GB HBM3"
    assert root.find(f"{NAMESPACE}desc").text.endswith("1 of 8 GPUs held")
    titles = [title.text for title in root.iter(f"{NAMESPACE}title")]
    assert any(gpu.uuid in title and title.endswith("held by default/train") for title in titles)
    assert "18 NVLinks from GPU 2 into the switches" in titles


def test_who_holds_what_and_what_is_broken_is_seen_without_colours():
    found = look("hgx-h100")
    gpus = list(found.gpus)
    gpus[1] = replace(gpus[1], fault="lost")
    root = ET.fromstring(draw(replace(found, gpus=tuple(gpus)), {gpus[0].uuid: "default/train"}))
    assert [box.get("class") for box in cards(root)].count("held") == 1
    assert [box.get("class") for box in cards(root)].count("fault") == 1
    assert {"train", "✕ lost", "✕ fault", "held"} <= set(texts(root))


def test_mig_devices_have_their_holders():
    found = look("mixed")
    device = next(device for gpu in found.gpus for device in gpu.mig_devices)
    root = ET.fromstring(draw(found, {device.uuid: "default/infer"}))
    assert f"{device.profile} infer" in texts(root)


def test_light_and_dark_have_the_same_parts_and_every_class_has_a_colour():
    light, dark = svg_parts._LIGHT, svg_parts._DARK
    assert light.keys() == dark.keys()
    picture = draw(look("mixed"), {look("mixed").gpus[0].uuid: "a/b"})
    used = {one for names in re.findall(r'class="([^"]+)"', picture) for one in names.split()}
    known = {name.rpartition(".")[2] for name in light} | {"strong", "small"}
    assert used <= known


def test_names_from_outside_cannot_break_it():
    found = look("hgx-h100")
    gpus = tuple(replace(gpu, model='<script>&"\x00\x0b') for gpu in found.gpus)
    root = ET.fromstring(draw(replace(found, gpus=gpus), {gpus[0].uuid: "</svg>/]]>"}))
    assert not list(root.iter(f"{NAMESPACE}script"))
    assert len(cards(root)) == 12


def test_a_machine_without_gpus_is_a_picture_too():
    found = look("hgx-h100")
    none = replace(found, gpus=(), nics=(), nvlinks=type(found.nvlinks)((), ()))
    assert texts(ET.fromstring(draw(none)))[0] == "no GPU"


def test_a_file_is_written_where_one_is_named(cli, tmp_path):
    ran = cli("topo", "--svg", str(tmp_path / "node.svg"), "--simulate", "dgx-1v")
    assert (ran.status, ran.out) == (0, "")
    assert (tmp_path / "node.svg").read_text().startswith("<svg ")


def test_kubelet_is_asked_who_holds_what(monkeypatch):
    uuid = look("hgx-h100").gpus[0].uuid
    devices = [PluginDevice("default", pod, "nvidia.com/gpu", f"{uuid}::{n}") for n, pod in enumerate("aba")]

    async def asked(_socket):
        return PodResources(tuple(devices), ())

    monkeypatch.setattr("gpuplugin.serving.pod_resources.pod_resources", asked)
    assert asyncio.run(topo._holders()) == {uuid: "default/a, default/b"}


def test_a_node_without_kubelet_is_drawn_all_the_same(monkeypatch, capsys, tmp_path):
    async def refused(_socket):
        raise PodResourcesUnavailable(tmp_path, "nobody there")

    monkeypatch.setattr("gpuplugin.serving.pod_resources.pod_resources", refused)
    assert asyncio.run(topo._holders()) == {}
    assert "without who holds what" in capsys.readouterr().err
