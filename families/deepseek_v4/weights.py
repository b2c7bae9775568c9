"""Resident weights of DeepSeek V4, read and bound once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coli.engine.checkpoint import Checkpoint
from coli.engine.memory import aligned_bytes, aligned_matrix
from coli.engine.safetensors import TensorInfo
from coli.errors import CheckpointError

from .config import Geometry
from .layout import DenseTensor, dense_tensors, expert_shapes

__all__ = ["Compressor", "Hyper", "Indexer", "Layer", "Weights", "check_experts", "load_weights", "weight_format"]

FORMAT_F32, FORMAT_BF16, FORMAT_FP8, FORMAT_FP4 = 0, 1, 2, 3
_MATMULS = {FORMAT_F32: "matmul_f32", FORMAT_BF16: "matmul_bf16", FORMAT_FP8: "matmul_fp8", FORMAT_FP4: "matmul_fp4"}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """A bound matrix and the stage that multiplies by it."""

    weight: Any
    stage: str


@dataclass(frozen=True)
class Hyper:
    """mHC parameters of one site."""

    fn: Any
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

    embed: Any
    head: Product
    norm: Floats
    hc_head: Hyper
    layers: tuple[Layer, ...]
    handles: tuple[Any, ...] = field(repr=False)


def load_weights(
    checkpoint: Checkpoint, geometry: Geometry, stages: Any, progress: Callable[[int], None] | None = None
) -> Weights:
    """Read every resident tensor and bind it. `progress` is told the bytes of each tensor as it is done.

    Raises CheckpointError that names the tensor when one is missing or has another shape or type.
    """
    loader = _Loader(checkpoint, stages)
    table: dict[str, Any] = {}
    for tensor in dense_tensors(geometry):
        table[tensor.name] = loader.load(tensor, geometry)
        if progress is not None:
            progress(checkpoint.tensors[tensor.name].nbytes)
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
    def __init__(self, checkpoint: Checkpoint, stages: Any) -> None:
        self._checkpoint = checkpoint
        self._stages = stages
        self.handles: list[Any] = []

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
        product.weight.release()
        return values

    def _product(self, tensor: DenseTensor, info: TensorInfo) -> Product:
        format_ = weight_format(self._checkpoint, tensor.name, tensor.shape)
        codes = self._read(info)
        scales = None
        if format_ in (FORMAT_FP8, FORMAT_FP4):
            scales = self._read(_info(self._checkpoint, _scale_name(tensor.name)))
        rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[0])
        return Product(self._stages.bind(tensor.name, format_, rows, cols, codes, scales), _MATMULS[format_])

    def _ids(self, tensor: DenseTensor, info: TensorInfo, geometry: Geometry) -> npt.NDArray[np.int64]:
        if info.dtype != "I64" or info.shape != tensor.shape:
            raise _mismatch(info, f"I64 {list(tensor.shape)}")
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


def weight_format(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> int:
    """Return the ABI format of a tensor from its type and scale, after checking both against [rows, cols]."""
    info = _info(checkpoint, name)
    formats = {"F32": FORMAT_F32, "BF16": FORMAT_BF16, "F8_E4M3": FORMAT_FP8, "I8": FORMAT_FP4}
    format_ = formats.get(info.dtype)
    if format_ is None:
        raise _mismatch(info, "one of F32, BF16, F8_E4M3 with scale, I8 (packed fp4) with scale")
    stored = shape
    if format_ == FORMAT_FP4:
        stored = (shape[0], shape[1] // 2)
    if info.shape != stored:
        raise _mismatch(info, f"{info.dtype} {list(stored)}")
    if format_ in (FORMAT_FP8, FORMAT_FP4):
        scale = _info(checkpoint, _scale_name(name), wanted_by=name)
        grid = (shape[0], shape[1] // 32) if format_ == FORMAT_FP4 else (-(-shape[0] // 128), -(-shape[1] // 128))
        if scale.dtype != "F8_E8M0" or scale.shape != grid:
            raise _mismatch(scale, f"F8_E8M0 {list(grid)}")
    return format_


def check_experts(checkpoint: Checkpoint, geometry: Geometry) -> int:
    """Check every routed expert's shapes and types; return the one format that they all have."""
    found: dict[int, str] = {}
    shapes = expert_shapes(geometry)
    for layer in range(geometry.layers):
        for expert in range(geometry.experts):
            for part, shape in shapes.items():
                name = f"layers.{layer}.ffn.experts.{expert}.{part}.weight"
                found.setdefault(weight_format(checkpoint, name, shape), name)
    if len(found) != 1 or not set(found) <= {FORMAT_FP8, FORMAT_FP4}:
        raise CheckpointError(
            str(checkpoint.path),
            "all routed experts must be packed fp4 (I8) or all fp8 (F8_E4M3)",
            observed=", ".join(f"{checkpoint.tensors[name].dtype} in {name}" for name in found.values()),
            fix="use the published checkpoint; a re-saved bf16 copy has lost its scales",
            code="checkpoint.expert-format",
        )
    return next(iter(found))


def _scale_name(name: str) -> str:
    return name.removesuffix(".weight") + ".scale"


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
