"""Muse Glimmer's text model with its output layer: transformers has them in a multimodal class
alone. `check_multimodal` compares that class with what this one computes."""

import torch
import transformers
from torch import nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer import modeling_muse_glimmer as code
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig


class MuseGlimmerForCausalLM(code.MuseGlimmerPreTrainedModel, GenerationMixin):
    config: MuseGlimmerTextConfig

    def __init__(self, config: MuseGlimmerTextConfig):
        super().__init__(config)
        self.model = code.MuseGlimmerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids=None, cache=None, use_cache=None, **kwargs):
        out = self.model(input_ids=input_ids, cache=cache, use_cache=use_cache, **kwargs)
        config = self.config
        logits = self.lm_head(out.last_hidden_state) * config.output_multiplier
        cap = config.final_logit_softcapping
        return CausalLMOutputWithPast(logits=torch.tanh(logits / cap) * cap, cache=out.cache)


transformers.MuseGlimmerTextConfig = MuseGlimmerTextConfig
transformers.MuseGlimmerForCausalLM = MuseGlimmerForCausalLM
