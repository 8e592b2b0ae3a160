//! The kinds of projectors: for each, the classes of the models that it makes with texts, the names
//! of its tensors, and what its header says in config.json's words.
//!
//! Source: llama.cpp's `conversion/` (what is written) and `tools/mtmd/` (what holds where nothing
//! is written); sizes of images that no file says are those of published preprocessor_config.json.

use super::{Sight, clip, gemma4, pixtral, qwen};
use vllm_batch_base::files::quoted;

/// A kind of projectors.
pub(super) struct Family {
    /// Its name in `clip.projector_type`.
    pub projector: &'static str,
    /// transformers' class, by the architecture of the text model's file; without one: of all.
    classes: &'static [(&'static str, &'static str)],
    /// What its header comes to.
    pub build: fn(&mut Sight<'_>) -> Result<(), String>,
}

impl Family {
    /// The class with this text model.
    pub(super) fn class(&self, text_arch: &str) -> Result<&'static str, String> {
        let is_of = |arch: &str| arch.is_empty() || arch == text_arch;
        let found = self.classes.iter().find(|(arch, _)| is_of(arch));
        found.map(|(_, class)| *class).ok_or_else(|| {
            let known: Vec<_> = self.classes.iter().map(|(arch, _)| *arch).collect();
            format!(
                "it goes with models of architecture {}; the model's is {}",
                known.join(", "),
                quoted(text_arch)
            )
        })
    }
}

/// By name.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        projector: "exaone4_5",
        classes: &[("exaone4", "Exaone4_5_ForConditionalGeneration")],
        build: qwen::exaone4_5,
    },
    Family {
        projector: "gemma3",
        classes: &[("gemma3", "Gemma3ForConditionalGeneration")],
        build: clip::gemma3,
    },
    Family {
        projector: "gemma4v",
        classes: &[("gemma4", "Gemma4ForConditionalGeneration")],
        build: gemma4::gemma4,
    },
    Family {
        projector: "glm4v",
        classes: &[
            ("glm4", "Glm4vForConditionalGeneration"),
            ("glm4moe", "Glm4vMoeForConditionalGeneration"),
        ],
        build: qwen::glm4v,
    },
    Family {
        projector: "idefics3",
        classes: &[("", "Idefics3ForConditionalGeneration")],
        build: clip::idefics3,
    },
    Family {
        projector: "internvl",
        classes: &[("", "InternVLForConditionalGeneration")],
        build: clip::internvl,
    },
    Family {
        projector: "lfm2",
        classes: &[
            ("lfm2", "Lfm2VlForConditionalGeneration"),
            ("lfm2moe", "Lfm2VlForConditionalGeneration"),
        ],
        build: clip::lfm2,
    },
    Family {
        projector: "lightonocr",
        classes: &[("qwen3", "LightOnOcrForConditionalGeneration")],
        build: pixtral::lighton_ocr,
    },
    Family {
        projector: "mlp",
        classes: &[("", "LlavaForConditionalGeneration")],
        build: clip::llava,
    },
    Family {
        projector: "paddleocr",
        classes: &[("paddleocr", "PaddleOCRVLForConditionalGeneration")],
        build: clip::paddleocr,
    },
    Family {
        projector: "pixtral",
        classes: &[("", "Mistral3ForConditionalGeneration")],
        build: pixtral::pixtral,
    },
    Family {
        projector: "qwen2vl_merger",
        classes: &[("qwen2vl", "Qwen2VLForConditionalGeneration")],
        build: qwen::qwen2_vl,
    },
    Family {
        projector: "qwen2.5vl_merger",
        classes: &[("qwen2vl", "Qwen2_5_VLForConditionalGeneration")],
        build: qwen::qwen2_5_vl,
    },
    Family {
        projector: "qwen3vl_merger",
        classes: &[
            ("qwen3vl", "Qwen3VLForConditionalGeneration"),
            ("qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration"),
            ("qwen35", "Qwen3_5ForConditionalGeneration"),
            ("qwen35moe", "Qwen3_5MoeForConditionalGeneration"),
        ],
        build: qwen::qwen3_vl,
    },
];
