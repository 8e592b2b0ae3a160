"""Step 3.5's text model with its output layer: transformers has them in a multimodal class alone."""

import transformers
from torch import nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.step3p7 import modeling_step3p7 as code
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig


class Step3p7ForCausalLM(code.Step3p7PreTrainedModel, GenerationMixin):
    config: Step3p7TextConfig

    def __init__(self, config: Step3p7TextConfig):
        super().__init__(config)
        self.model = code.Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, cache=None, use_cache=None, **kwargs):
        out = self.model(input_ids=input_ids, cache=cache, use_cache=use_cache, **kwargs)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state), cache=out.cache)


transformers.Step3p7TextConfig = Step3p7TextConfig
transformers.Step3p7ForCausalLM = Step3p7ForCausalLM
