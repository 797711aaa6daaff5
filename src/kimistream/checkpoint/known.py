"""Which fields `config.json` may have: those that shape the text computation, and those that do not.

Knows: the fields of the released files of the family.
Does not know: which values they may have (config.py).
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHAPING = _words(
    """
    model_type hidden_size num_hidden_layers vocab_size num_attention_heads num_key_value_heads
    linear_attn_config q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim mla_use_nope
    mla_use_output_gate first_k_dense_replace moe_layer_freq intermediate_size num_experts
    num_experts_per_token num_shared_experts moe_intermediate_size routed_expert_hidden_size
    latent_moe_use_norm moe_renormalize routed_scaling_factor moe_router_activation_func num_expert_group
    topk_group use_grouped_topk topk_method hidden_act activation_situ_beta activation_situ_linear_beta
    attn_res_block_size rms_norm_eps bos_token_id eos_token_id pad_token_id tie_word_embeddings
    quantization_config rope_scaling rope_parameters add_cross_attention is_encoder_decoder
    tie_encoder_decoder pruned_heads attention_bias mlp_bias sliding_window
    """
)
"""Fields of the text model that are read and checked."""

IGNORED = _words(
    """
    architectures auto_map dtype torch_dtype transformers_version ignore_index image_placeholder
    media_placeholder_token_id vision_config text_config bad_words_ids begin_suppress_tokens
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty
    do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id id2label label2id initializer_range
    is_decoder length_penalty max_length max_position_embeddings model_max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_nextn_predict_layers num_return_sequences
    output_attentions output_hidden_states output_scores prefix problem_type remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torchscript typical_p
    use_bfloat16 use_cache head_dim rope_theta attention_dropout pretraining_tp aux_loss_alpha seq_aux
    router_aux_loss_coef attn_implementation use_mla
    """
)
"""Fields of the released files (and of their library) that do not change the text computation."""

LINEAR_FIELDS = _words(
    """
    full_attn_layers kda_layers head_dim num_heads short_conv_kernel_size gate_lower_bound
    use_full_rank_gate
    """
)
"""Fields of `linear_attn_config`."""
