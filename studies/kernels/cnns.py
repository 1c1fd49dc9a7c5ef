"""Whole models of pytorch-image-models in mixed precision, against its published benchmarks.

::

    git clone https://github.com/huggingface/pytorch-image-models        # Apache-2.0; results/*.csv
    pip install torch timm
    python -m studies.kernels.cnns --gpu rtx-5090 results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv

Each model is exported at its own size with the table's batch under autocast (with gradients and optimizer if
the table is of training; fused if it is of ``torch.compile``, as dynamo in its name says; channels last as
nhwc says), and set against microseconds an image. Without names it takes 45 CNNs. Tables of PyTorch 1 need
``TIMM_FUSED_ATTN=0``.

Inference on RTX 3090, 4090 and PRO 6000 ran with the benchmark's ``--fast-norm`` (norms in 16 bits), on the
5090 without. The tables do not say so, but with group norm a ResNet-50 takes 1.1 to 1.2 times as long as with
batch norm on the former, 2.2 times on the latter (1.3 and 1.5 compiled).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from types import MethodType
from typing import Annotated, Any

import typer

from devices.machine import make_device
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.fusion import Fusion
from scenarios.importers.torch_export import import_torch
from sim import Device
from sim.base.errors import InputError, UnknownNameError
from sim.base.files import read_table
from sim.base.units import format_count
from sim.job.costs import costs_ns
from studies.program import run

MODELS = """resnet18 resnet34 resnet50 resnet101 resnet152 resnet50d wide_resnet50_2 resnext50_32x4d
    resnext101_32x8d seresnet50 resnetrs50 vgg16 vgg16_bn vgg19 densenet121 densenet201 mobilenetv2_100
    mobilenetv3_large_100 mobilenetv3_small_100 mnasnet_100 efficientnet_b0 efficientnet_b3 efficientnet_lite0
    efficientnetv2_s tf_efficientnetv2_s mixnet_s ghostnet_100 regnetx_032 regnety_032 regnety_160 regnetz_c16
    convmixer_768_32 inception_v3 inception_v4 xception41 dla60 hrnet_w18 res2net50_26w_4s resnest50d
    cspresnet50 darknet53 ese_vovnet39b selecsls42b hardcorenas_a tresnet_m"""


def _under_autocast(model: Any, images: Any) -> Any:
    import torch

    with torch.autocast("cuda"):
        return type(model).forward(model, images)


def ratios(
    table: Path, device: Device, names: list[str], fast_norm: bool = False
) -> Iterator[tuple[str, float, float]]:
    """Yield each model of a table with the time an image that it is said to take, and the measured one."""
    import timm
    import torch

    timm.layers.set_fast_norm(fast_norm)
    header, rows = read_table(table)
    way = "train" if "train_img_size" in header else "infer"
    found = {
        (row["model"].split(".")[0], int(row[f"{way}_img_size"])): (
            float(row[f"{way}_samples_per_sec"]),
            int(row[f"{way}_batch_size"]),
        )
        for _, row in rows
    }
    if unknown := sorted({*names} - {name for name, _ in found}):
        raise UnknownNameError("model", unknown[0], {name for name, _ in found})
    for name in names or MODELS.split():
        size = timm.get_pretrained_cfg(name).input_size[-1]
        if (name, size) in found:
            rate, batch = found[name, size]
            layout = torch.channels_last if "nhwc" in table.name else torch.contiguous_format
            images = torch.zeros(batch, 3, size, size).to(memory_format=layout)
            model = timm.create_model(name).eval().to(memory_format=layout)
            model.forward = MethodType(_under_autocast, model)
            graph = import_torch(model, (images,), unknown="bytes")
            graph = TrainingRewrite(loss=graph.op_names[-1]).apply(graph) if way == "train" else graph
            graph = Fusion("elementwise").apply(graph) if "dynamo" in table.name else graph
            yield name, costs_ns(graph, device).sum() / 1e3 / batch, 1e6 / rate


def main(
    table: Path,
    gpu: Annotated[str, typer.Option(metavar="PRESET")],
    names: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="default: 45 CNNs")] = None,
    fast_norm: Annotated[bool, typer.Option("--fast-norm", help="the table was made with it")] = False,
) -> None:
    """Print each model, and how far all of them are off."""
    off = []
    device = make_device("gpu0", {"preset": gpu}, kinds=None)
    for name, us, was in ratios(table, device, names or [], fast_norm):
        off.append(abs(us / was - 1))
        print(f"{name:24} {us:8.1f} us an image, measured {was:8.1f}, {us / was - 1:+.0%}")
    if not off:
        raise InputError(f"{table}: has none of these models at its own size")
    models = format_count(len(off), "model")
    print(f"{models}: {fmean(off):.1%} off in the mean, {median(off):.1%} in the median")


if __name__ == "__main__":
    run(main)
