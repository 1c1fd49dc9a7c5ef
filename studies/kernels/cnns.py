r"""Whole CNNs of pytorch-image-models as PyTorch runs them in fp16, against its published benchmarks.

::

    git clone https://github.com/huggingface/pytorch-image-models        # Apache-2.0; results/*.csv
    pip install torch timm
    python -m studies.kernels.cnns results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv \
        '{preset: rtx-pro-6000, sms: 170, clock: 2407MHz, l2: 96MiB, peak: {fp16: 209.5TFLOP/s}}'

Each model is exported at its own size with 256 images, priced in fp16, and set against microseconds an image.
Transformers are left out: AMP computes their norms and residuals in fp32.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

import yaml

from devices.machine import make_device
from scenarios.importers.torch_export import import_torch
from sim.job.costs import costs_ns

IMAGES = 256
MODELS = """resnet18 resnet34 resnet50 resnet101 resnet152 resnet50d wide_resnet50_2 resnext50_32x4d
    resnext101_32x8d seresnet50 resnetrs50 vgg16 vgg16_bn vgg19 densenet121 densenet201 mobilenetv2_100
    mobilenetv3_large_100 mobilenetv3_small_100 mnasnet_100 efficientnet_b0 efficientnet_b3 efficientnet_lite0
    efficientnetv2_s tf_efficientnetv2_s mixnet_s ghostnet_100 regnetx_032 regnety_032 regnety_160 regnetz_c16
    convmixer_768_32 inception_v3 inception_v4 xception41 dla60 hrnet_w18 res2net50_26w_4s resnest50d
    cspresnet50 darknet53 ese_vovnet39b selecsls42b hardcorenas_a tresnet_m"""


def measured_us(table: Path) -> dict[tuple[str, int], float]:
    """Return the microseconds an image of each model at each size."""
    with table.open(encoding="utf-8") as file:
        return {
            (row["model"].split(".")[0], int(row["infer_img_size"])): 1e6
            / float(row["infer_samples_per_sec"])
            for row in csv.DictReader(file)
        }


def ratios(table: Path, gpu: dict[str, object]) -> Iterator[tuple[str, float, float]]:
    """Yield each model of a table with the time an image that it is said to take, and the measured one."""
    import timm
    import torch

    measured, device = measured_us(table), make_device("gpu0", gpu, kinds=None)
    for name in MODELS.split():
        size = timm.get_pretrained_cfg(name).input_size[-1]
        if (name, size) in measured:
            model = timm.create_model(name).eval()
            graph = import_torch(model, (torch.zeros(IMAGES, 3, size, size),), dtype="fp16", unknown="bytes")
            yield name, costs_ns(graph, device).sum() / 1e3 / IMAGES, measured[name, size]


def main(table: str, gpu: str) -> None:
    """Print each model, and how far all of them are off."""
    off = []
    for name, us, was in ratios(Path(table), yaml.safe_load(gpu)):
        off.append(abs(us / was - 1))
        print(f"{name:24} {us:8.1f} us an image, measured {was:8.1f}, {us / was - 1:+.0%}")
    print(f"{len(off)} models: {fmean(off):.1%} off in the mean, {median(off):.1%} in the median")


if __name__ == "__main__":
    main(*sys.argv[1:])
