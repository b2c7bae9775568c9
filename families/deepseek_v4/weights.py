"""Resident weights of DeepSeek V4, read and bound once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coli.backends.dispatch import Dispatcher, Format, Weight
from coli.engine.checkpoint import Checkpoint
from coli.engine.memory import aligned_bytes, aligned_matrix
from coli.engine.safetensors import TensorInfo
from coli.errors import CheckpointError

from .config import Geometry
from .layout import DenseTensor, dense_tensors, expert_name, expert_shapes, scale_name

__all__ = [
    "Compressor",
    "Hyper",
    "Indexer",
    "Layer",
    "Weights",
    "check_dense",
    "check_experts",
    "load_weights",
    "weight_format",
]

_MATMULS = {
    Format.F32: "matmul_f32",
    Format.BF16: "matmul_bf16",
    Format.FP8_BLOCK: "matmul_fp8",
    Format.FP4_GROUP: "matmul_fp4",
}
_FORMATS = {"F32": Format.F32, "BF16": Format.BF16, "F8_E4M3": Format.FP8_BLOCK, "I8": Format.FP4_GROUP}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """A bound matrix and the stage that multiplies by it."""

    weight: Weight
    stage: str


@dataclass(frozen=True)
class Hyper:
    """mHC parameters of one site."""

    fn: Weight
    scale: Floats
    base: Floats


@dataclass(frozen=True)
class Compressor:
    """Projections, position bias and norm of a compressor."""

    wkv: Product
    wgate: Product
    ape: Floats
    norm: Floats


@dataclass(frozen=True)
class Indexer:
    """The lightning indexer of a CSA layer."""

    wq_b: Product
    weights_proj: Product
    compressor: Compressor


@dataclass(frozen=True)
class Layer:
    """Resident weights of one layer; `bias` or `tid2eid` is None according to its routing."""

    attn_norm: Floats
    ffn_norm: Floats
    hc_attn: Hyper
    hc_ffn: Hyper
    sinks: Floats
    q_norm: Floats
    kv_norm: Floats
    wq_a: Product
    wq_b: Product
    wkv: Product
    wo_a: Product
    wo_b: Product
    compressor: Compressor | None
    indexer: Indexer | None
    gate: Product
    bias: Floats | None
    tid2eid: npt.NDArray[np.int64] | None
    shared_w1: Product
    shared_w3: Product
    shared_w2: Product


@dataclass(frozen=True)
class Weights:
    """Every resident weight; `handles` are the native ones, for release."""

    embed: Weight
    head: Product
    norm: Floats
    hc_head: Hyper
    layers: tuple[Layer, ...]
    handles: tuple[Weight, ...] = field(repr=False)


def load_weights(
    checkpoint: Checkpoint, geometry: Geometry, stages: Dispatcher, progress: Callable[[int, int], None] | None = None
) -> Weights:
    """Read every resident tensor and bind it. `progress` is told (bytes done, bytes in all) after each.

    Raises CheckpointError that names the tensor when one is missing or has another shape or type.
    """
    loader = _Loader(checkpoint, stages)
    table: dict[str, Any] = {}
    tensors = dense_tensors(geometry)
    whole = sum(checkpoint.tensors[t.name].nbytes for t in tensors if t.name in checkpoint.tensors)
    done = 0
    for tensor in tensors:
        table[tensor.name] = loader.load(tensor, geometry)
        done += checkpoint.tensors[tensor.name].nbytes
        if progress is not None:
            progress(done, whole)
    return Weights(
        embed=table["embed.weight"].weight,
        head=table["head.weight"],
        norm=table["norm.weight"],
        hc_head=_hyper(table, "hc_head"),
        layers=tuple(_layer(table, geometry, layer) for layer in range(geometry.layers)),
        handles=tuple(loader.handles),
    )


def _hyper(table: dict[str, Any], prefix: str) -> Hyper:
    return Hyper(table[prefix + "_fn"].weight, table[prefix + "_scale"], table[prefix + "_base"])


def _compressor(table: dict[str, Any], prefix: str) -> Compressor:
    return Compressor(
        wkv=table[prefix + "wkv.weight"],
        wgate=table[prefix + "wgate.weight"],
        ape=table[prefix + "ape"],
        norm=table[prefix + "norm.weight"],
    )


def _layer(table: dict[str, Any], geometry: Geometry, layer: int) -> Layer:
    prefix = f"layers.{layer}."
    attn, ffn = prefix + "attn.", prefix + "ffn."
    compressor = _compressor(table, attn + "compressor.") if geometry.ratios[layer] else None
    indexer = None
    if geometry.overlaps(layer):
        indexer = Indexer(
            wq_b=table[attn + "indexer.wq_b.weight"],
            weights_proj=table[attn + "indexer.weights_proj.weight"],
            compressor=_compressor(table, attn + "indexer.compressor."),
        )
    return Layer(
        attn_norm=table[prefix + "attn_norm.weight"],
        ffn_norm=table[prefix + "ffn_norm.weight"],
        hc_attn=_hyper(table, prefix + "hc_attn"),
        hc_ffn=_hyper(table, prefix + "hc_ffn"),
        sinks=table[attn + "attn_sink"],
        q_norm=table[attn + "q_norm.weight"],
        kv_norm=table[attn + "kv_norm.weight"],
        wq_a=table[attn + "wq_a.weight"],
        wq_b=table[attn + "wq_b.weight"],
        wkv=table[attn + "wkv.weight"],
        wo_a=table[attn + "wo_a.weight"],
        wo_b=table[attn + "wo_b.weight"],
        compressor=compressor,
        indexer=indexer,
        gate=table[ffn + "gate.weight"],
        bias=table.get(ffn + "gate.bias"),
        tid2eid=table.get(ffn + "gate.tid2eid"),
        shared_w1=table[ffn + "shared_experts.w1.weight"],
        shared_w3=table[ffn + "shared_experts.w3.weight"],
        shared_w2=table[ffn + "shared_experts.w2.weight"],
    )


class _Loader:
    def __init__(self, checkpoint: Checkpoint, stages: Dispatcher) -> None:
        self._checkpoint = checkpoint
        self._stages = stages
        self.handles: list[Weight] = []

    def load(self, tensor: DenseTensor, geometry: Geometry) -> Any:
        info = _info(self._checkpoint, tensor.name)
        if tensor.kind == "ids":
            return self._ids(tensor, info, geometry)
        product = self._product(tensor, info)
        if tensor.kind == "product":
            self.handles.append(product.weight)
            return product
        rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[0])
        values = aligned_matrix(rows, cols)
        self._stages.dequantize(product.weight, 0, values)
        product.weight.close()
        return values

    def _product(self, tensor: DenseTensor, info: TensorInfo) -> Product:
        format_ = weight_format(self._checkpoint, tensor.name, tensor.shape)
        codes = self._read(info)
        scales = None
        if format_ in (Format.FP8_BLOCK, Format.FP4_GROUP):
            scales = self._read(_info(self._checkpoint, scale_name(tensor.name)))
        rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[0])
        return Product(self._stages.bind(tensor.name, format_, rows, cols, codes, scales), _MATMULS[format_])

    def _ids(self, tensor: DenseTensor, info: TensorInfo, geometry: Geometry) -> npt.NDArray[np.int64]:
        ids = self._read(info).view(np.int64).reshape(tensor.shape)
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= geometry.experts):
            raise CheckpointError(
                f"{info.path}: tensor {tensor.name}",
                "a routing table must name existing experts",
                observed=f"ids from {int(ids.min())} to {int(ids.max())}",
                expected=f"0 to {geometry.experts - 1}",
                code="checkpoint.routing-table",
            )
        return ids

    def _read(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        buffer = aligned_bytes(info.nbytes)
        self._checkpoint.read_into(info.name, buffer)
        return buffer


def weight_format(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Format:
    """Return the ABI format of a tensor from its type and scale, after checking both against [rows, cols]."""
    info = _info(checkpoint, name)
    format_ = _FORMATS.get(info.dtype)
    if format_ is None:
        raise _mismatch(info, "one of F32, BF16, F8_E4M3 with scale, I8 (packed fp4) with scale")
    stored = shape
    if format_ == Format.FP4_GROUP:
        stored = (shape[0], shape[1] // 2)
    if info.shape != stored:
        raise _mismatch(info, f"{info.dtype} {list(stored)}")
    if format_ in (Format.FP8_BLOCK, Format.FP4_GROUP):
        scale = _info(checkpoint, scale_name(name), wanted_by=name)
        grid = (shape[0], shape[1] // 32) if format_ == Format.FP4_GROUP else (-(-shape[0] // 128), -(-shape[1] // 128))
        if scale.dtype != "F8_E8M0" or scale.shape != grid:
            raise _mismatch(scale, f"F8_E8M0 {list(grid)}")
    return format_


def check_dense(checkpoint: Checkpoint, geometry: Geometry) -> None:
    """Check shape and type of every resident tensor."""
    for tensor in dense_tensors(geometry):
        if tensor.kind != "ids":
            weight_format(checkpoint, tensor.name, tensor.shape)
            continue
        info = _info(checkpoint, tensor.name)
        if info.dtype != "I64" or info.shape != tensor.shape:
            raise _mismatch(info, f"I64 {list(tensor.shape)}")


def check_experts(checkpoint: Checkpoint, geometry: Geometry) -> Format:
    """Check every routed expert's shapes and types; return the one format that they all have."""
    found: dict[Format, str] = {}
    shapes = expert_shapes(geometry)
    for layer in range(geometry.layers):
        for expert in range(geometry.experts):
            for part, shape in shapes.items():
                name = expert_name(layer, expert, part)
                found.setdefault(weight_format(checkpoint, name, shape), name)
    if len(found) != 1 or not set(found) <= {Format.FP8_BLOCK, Format.FP4_GROUP}:
        raise CheckpointError(
            str(checkpoint.path),
            "all routed experts must be packed fp4 (I8) or all fp8 (F8_E4M3)",
            observed=", ".join(f"{checkpoint.tensors[name].dtype} in {name}" for name in found.values()),
            fix="use the published checkpoint; a re-saved bf16 copy has lost its scales",
            code="checkpoint.expert-format",
        )
    return next(iter(found))


def _info(checkpoint: Checkpoint, name: str, wanted_by: str | None = None) -> TensorInfo:
    info = checkpoint.tensors.get(name)
    if info is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name}",
            "a quantized weight needs its scale" if wanted_by else "the geometry in config.json needs this tensor",
            observed="not in any shard" + (f" ({wanted_by} is there)" if wanted_by else ""),
            fix="download the checkpoint again, or check that config.json belongs to it",
            code="checkpoint.missing-scale" if wanted_by else "checkpoint.missing-tensor",
        )
    return info


def _mismatch(info: TensorInfo, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{info.path}: tensor {info.name}",
        "type and shape must be those that config.json asks for",
        observed=f"{info.dtype} {list(info.shape)}",
        expected=expected,
        fix="check that config.json belongs to these shards",
        code="checkpoint.wrong-shape",
    )
