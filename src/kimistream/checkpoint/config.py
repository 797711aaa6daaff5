"""`config.json` into a typed description of the model (ARCHITECTURE sections 1 and 10).

Knows: the nested form of Kimi K3 and the flat form of Kimi-Linear, which fields shape the text
computation, and which values of them are built.
Does not know: which tensors are on disk, or how anything is computed.

A field that is needed and missing, or whose value is not understood, is refused by name and never
replaced by a default. Fields of the released files that do not change the text computation (generation
defaults, the vision tower, names of Python classes) are ignored; a field that is in neither list is
refused when it is switched on, because it may change the result.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from kimistream.checkpoint.fetch import fetch
from kimistream.checkpoint.fields import REMEDY, Fields, shown
from kimistream.checkpoint.known import IGNORED, LINEAR_FIELDS, SHAPING
from kimistream.errors import CheckpointError, ConfigError

LayerKind = Literal["kda", "mla"]
FfnKind = Literal["dense", "moe"]

GIVE = "Give the directory that holds config.json and the shards of a checkpoint."
MAX_SIZE = 1 << 24
"""No width, vocabulary or count of the family comes near; keeps products inside 64 bits."""
MAX_LAYERS = 4096
MAX_EXPERTS = 1 << 14


@dataclass(frozen=True, slots=True)
class KdaConfig:
    """The KDA layers (section 5); all alike. `gate_lower_bound` None selects the softplus decay."""

    num_heads: int
    head_dim: int
    conv_kernel: int
    gate_lower_bound: float | None
    full_rank_gate: bool

    @property
    def width(self) -> int:
        """Numbers in q, k, v and the output of all heads together."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """The MLA layers (section 6). `q_lora_rank` None means one `q_proj`."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    output_gate: bool

    @property
    def q_head_dim(self) -> int:
        return self.nope_head_dim + self.rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Numbers cached for one position: the normalised latent, then the shared key part."""
        return self.kv_lora_rank + self.rope_head_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """The MoE layers (section 7). `latent_size` None means experts at the full hidden width."""

    num_experts: int
    top_k: int
    num_shared_experts: int
    intermediate_size: int
    latent_size: int | None
    latent_norm: bool
    renormalize: bool
    scaling_factor: float
    sigmoid: bool
    num_groups: int
    topk_groups: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that shapes the text computation. Layers are counted from 0."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    layer_kinds: tuple[LayerKind, ...]
    ffn_kinds: tuple[FfnKind, ...]
    kda: KdaConfig
    mla: MlaConfig
    moe: MoeConfig
    dense_intermediate_size: int
    activation: Literal["situ", "silu"]
    situ_beta: float
    """0.0 when `activation` is "silu", as is `situ_linear_beta`."""
    situ_linear_beta: float
    """NaN when `up` has no limit (null in config.json)."""
    attn_res_block_size: int | None
    rms_norm_eps: float
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    tied: bool
    """The output head is the embedding matrix (`tie_word_embeddings`)."""
    nested: bool
    """True: Kimi K3's form and tensor names; False: Kimi-Linear's."""

    @property
    def prefix(self) -> str:
        """What the names of the decoder's tensors begin with."""
        return "language_model.model." if self.nested else "model."

    @property
    def head_name(self) -> str:
        """The tensor of the output head."""
        if self.tied:
            return f"{self.prefix}embed_tokens.weight"
        return "language_model.lm_head.weight" if self.nested else "lm_head.weight"

    @property
    def expert_width(self) -> int:
        """Numbers that go into and come out of one routed expert."""
        return self.hidden_size if self.moe.latent_size is None else self.moe.latent_size

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.ffn_kinds) if kind == "moe")


def load_config(directory: str | Path) -> ModelConfig:
    """Read `directory`/config.json. Raises CheckpointError (no such file) or ConfigError (its content)."""
    return parse_config(read_config_bytes(directory), str(Path(directory) / "config.json"))


def read_config_bytes(directory: str | Path) -> bytes:
    """The bytes of `directory`/config.json; the checks of the directory itself are here too."""
    directory = Path(directory)
    file = directory / "config.json"
    if not os.path.isdir(directory):
        kind = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise CheckpointError(
            f"{directory} {kind}", "Give the directory that holds config.json and the shards."
        )
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{directory} holds no config.json", GIVE) from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}", "Check its permissions.") from None


def parse_config(data: bytes, file: str = "config.json") -> ModelConfig:
    """The configuration in `data`; `file` is how messages call it. Raises ConfigError."""
    try:
        top_values: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {error}", fetch(Path(file))) from None
    if not isinstance(top_values, dict):
        raise ConfigError(f"{file} holds {shown(top_values)}; needed: a JSON object", fetch(Path(file)))
    top = Fields(file, "", top_values)
    nested = top.choice("model_type", ("kimi_k3", "kimi_linear")) == "kimi_k3"
    if not nested:
        return _parse_text(top, top, nested)
    text = top.section("text_config")
    text.fixed("model_type", "kimi_linear")
    top.only(SHAPING | IGNORED)
    return _parse_text(text, top, nested)


def _parse_text(text: Fields, top: Fields, nested: bool) -> ModelConfig:
    text.only(SHAPING | IGNORED)
    _check_not_built(text, top)
    hidden = text.integer("hidden_size", 1, MAX_SIZE)
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 1, MAX_SIZE)
    linear = text.section("linear_attn_config")
    first_moe = text.integer("first_k_dense_replace", 0, layers)
    activation: Literal["situ", "silu"]
    activation = "situ" if text.choice("hidden_act", ("situ", "silu")) == "situ" else "silu"
    situ = activation == "situ"
    positive = "a number above 0"
    return ModelConfig(
        hidden_size=hidden,
        num_layers=layers,
        vocab_size=vocab,
        layer_kinds=_layer_kinds(linear, layers),
        ffn_kinds=tuple("dense" if i < first_moe else "moe" for i in range(layers)),
        kda=_parse_kda(linear),
        mla=_parse_mla(text),
        moe=_parse_moe(text),
        dense_intermediate_size=text.integer("intermediate_size", 1, MAX_SIZE),
        activation=activation,
        situ_beta=text.number("activation_situ_beta", 0.0, 1e6, positive) if situ else 0.0,
        situ_linear_beta=_situ_linear_beta(text) if situ else 0.0,
        attn_res_block_size=text.optional_integer("attn_res_block_size", 1, MAX_LAYERS),
        rms_norm_eps=text.number("rms_norm_eps", 0.0, 1.0, "a number above 0 and below 1"),
        bos_id=_first_given("bos_token_id", text, top).optional_integer("bos_token_id", 0, vocab - 1),
        eos_ids=_eos_ids(_first_given("eos_token_id", text, top), vocab),
        pad_id=_first_given("pad_token_id", text, top).optional_integer("pad_token_id", 0, vocab - 1),
        tied=top.optional_flag("tie_word_embeddings") or text.optional_flag("tie_word_embeddings"),
        nested=nested,
    )


def _situ_linear_beta(text: Fields) -> float:
    name = "activation_situ_linear_beta"
    if name in text.values and text.values[name] is None:
        return math.nan
    return text.number(name, 0.0, 1e6, "null, or a number above 0")


def _check_not_built(text: Fields, top: Fields) -> None:
    """Refuse what would change the computation and is not built (each by its own name)."""
    text.integer("moe_layer_freq", 1, 1)
    if not text.flag("mla_use_nope"):
        text.refuse("mla_use_nope", "true (rotary positions are not built)", "This model is not supported.")
    for name in (
        "add_cross_attention",
        "is_encoder_decoder",
        "tie_encoder_decoder",
        "attention_bias",
        "mlp_bias",
    ):
        text.fixed(name, False)
    text.fixed("pruned_heads", {})
    text.fixed("rope_scaling")
    text.fixed("sliding_window")
    text.fixed("topk_method", "noaux_tc")
    if text.given("rope_parameters"):
        text.section("rope_parameters").fixed("rope_type", "default")
    if text.given("num_key_value_heads"):
        heads = text.integer("num_attention_heads", 1, MAX_SIZE)
        text.fixed("num_key_value_heads", heads)
    for place in (text, top) if text is not top else (text,):
        if place.given("quantization_config"):
            _check_quantization(place.section("quantization_config"))


def _check_quantization(quantization: Fields) -> None:
    """Only the released form: MXFP4, 32 numbers to a scale (section 8)."""
    quantization.choice("quant_method", ("compressed-tensors",))
    quantization.fixed("kv_cache_scheme")
    quantization.choice("format", ("mxfp4-pack-quantized",))
    groups = quantization.section("config_groups")
    for name in groups.values:
        group = groups.section(name)
        group.fixed("format", "mxfp4-pack-quantized")
        group.fixed("input_activations")
        group.fixed("output_activations")
        weights = group.section("weights")
        weights.integer("num_bits", 4, 4)
        weights.integer("group_size", 32, 32)
        weights.choice("type", ("float",))
        weights.fixed("strategy", "group")
        weights.fixed("symmetric", True)
        weights.fixed("actorder")
        weights.fixed("block_structure")


def _layer_kinds(linear: Fields, layers: int) -> tuple[LayerKind, ...]:
    """KDA or MLA for each layer; the two lists count from one and must share out all layers."""
    kda = set(linear.integers("kda_layers", 1, layers))
    mla = set(linear.integers("full_attn_layers", 1, layers))
    for number in range(1, layers + 1):
        count = (number in kda) + (number in mla)
        if count != 1:
            where = "neither" if count == 0 else "both"
            raise ConfigError(
                f"{linear.file}: layer {number} of {layers} (counted from one) is in {where} of "
                f"{linear.dotted('kda_layers')} and {linear.dotted('full_attn_layers')}; "
                "understood: in exactly one",
                REMEDY,
            )
    return tuple("kda" if number in kda else "mla" for number in range(1, layers + 1))


def _parse_kda(linear: Fields) -> KdaConfig:
    linear.only(LINEAR_FIELDS)
    bound = "null, or a number below 0"
    return KdaConfig(
        num_heads=linear.integer("num_heads", 1, 1 << 16),
        head_dim=_multiple_of_16(linear, "head_dim"),
        conv_kernel=linear.integer("short_conv_kernel_size", 1, 64),
        gate_lower_bound=(
            linear.number("gate_lower_bound", -1e4, 0.0, bound) if linear.given("gate_lower_bound") else None
        ),
        full_rank_gate=linear.optional_flag("use_full_rank_gate"),
    )


def _parse_mla(text: Fields) -> MlaConfig:
    return MlaConfig(
        num_heads=text.integer("num_attention_heads", 1, 1 << 16),
        q_lora_rank=text.optional_integer("q_lora_rank", 1, MAX_SIZE),
        kv_lora_rank=_multiple_of_16(text, "kv_lora_rank"),
        nope_head_dim=text.integer("qk_nope_head_dim", 1, 1 << 16),
        rope_head_dim=text.integer("qk_rope_head_dim", 1, 1 << 16),
        v_head_dim=text.integer("v_head_dim", 1, 1 << 16),
        output_gate=text.optional_flag("mla_use_output_gate"),
    )


def _parse_moe(text: Fields) -> MoeConfig:
    experts = text.integer("num_experts", 1, MAX_EXPERTS)
    latent = text.optional_integer("routed_expert_hidden_size", 1, MAX_SIZE)
    groups = text.integer("num_expert_group", 1, experts)
    if experts % groups:
        text.refuse("num_expert_group", f"a divisor of num_experts = {experts}")
    topk_groups = text.integer("topk_group", 1, groups)
    if groups > 1 and not text.flag("use_grouped_topk"):
        text.refuse("use_grouped_topk", f"true where num_expert_group = {groups}")
    if groups > 1 and experts // groups < 2:
        text.refuse("num_expert_group", "groups of at least two experts")
    # More than the groups that may compete hold could never be chosen.
    top_k = text.integer("num_experts_per_token", 1, experts // groups * topk_groups)
    return MoeConfig(
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=text.integer("num_shared_experts", 0, 1 << 10),
        intermediate_size=text.integer("moe_intermediate_size", 1, MAX_SIZE),
        latent_size=latent,
        latent_norm=text.flag("latent_moe_use_norm") if latent is not None else False,
        renormalize=text.flag("moe_renormalize"),
        scaling_factor=text.number("routed_scaling_factor", 0.0, 1e6, "a number above 0"),
        sigmoid=text.choice("moe_router_activation_func", ("sigmoid", "softmax")) == "sigmoid",
        num_groups=groups,
        topk_groups=topk_groups,
    )


def _multiple_of_16(fields: Fields, name: str) -> int:
    value = fields.integer(name, 16, 1 << 14)
    if value % 16:
        fields.refuse(name, "a multiple of 16 (one vector of the kernels)", "This model is not supported.")
    return value


def _first_given(name: str, *places: Fields) -> Fields:
    """The first place that has the field, else the first place (whose refusal then names it)."""
    return next((place for place in places if place.given(name)), places[0])


def _eos_ids(fields: Fields, vocab: int) -> tuple[int, ...]:
    """One id or a list of them."""
    if isinstance(fields.values.get("eos_token_id"), list):
        return tuple(fields.integers("eos_token_id", 0, vocab - 1))
    return (fields.integer("eos_token_id", 0, vocab - 1),)
