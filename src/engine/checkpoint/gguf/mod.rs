//! A GGUF file as a model: its metadata in the words of config.json, and its tensors by
//! transformers' names. Everything behind that is as it is for a folder.

mod archs;
mod config;
mod delta_net;
mod gemma4;
mod glm;
mod gpt;
mod keys;
mod latent;
mod llama4;
mod mamba;
mod mamba1;
mod names;
mod open;
mod projector;
mod rope;
mod sparse;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::spec::QkvHeads;
use super::weights::gguf::Metadata;
use archs::{ARCHS, Arch};
use config::Config;
use keys::Keys;
use names::Qkv;
pub use names::{Names, ROPE_VECTORS};
pub use open::{GgufModel, Opened};
pub use projector::{ImageProcessorConfig, ProjectorNames};
use vllm_batch_base::files::quoted;

/// What a GGUF file says of its model; of a split one, all files together.
#[derive(Clone, Debug, Default)]
pub struct Described {
    /// Values by key.
    pub metadata: Arc<Metadata>,
    /// Shapes of tensors by the file's names, rows first.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values of `ROPE_VECTORS`, of those that are there.
    pub vectors: BTreeMap<String, Vec<f32>>,
    /// How many tensors are of which type, for people to read.
    pub types: String,
}

/// A file's model, in the words of a folder.
#[derive(Clone, Debug)]
pub struct Translation {
    /// What its config.json would say.
    pub config: Map<String, Value>,
    /// Its tensors.
    pub names: Names,
}

/// Encoders, by llama.cpp's names.
const ENCODERS: [&str; 9] = [
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
];

/// Mixtures of experts that are not supported, which are known by their own names.
const EXPERTS: [&str; 1] = ["phimoe"];

impl Described {
    /// The model in the words of a folder.
    ///
    /// # Errors
    /// The architecture is not supported, or the metadata lacks something or has a key that is not
    /// known; the text says which.
    pub fn translate(&self) -> Result<Translation, String> {
        let arch = self.arch()?;
        let mut config = Config::new(Keys::new(self, arch.name));
        let in_arch = |text: String| format!("architecture {}: {text}", arch.name);
        let (class, table) = (arch.translate)(&mut config).map_err(in_arch)?;
        if table.qkv != Qkv::AsTheyWere {
            let orders = heads(&config).map(|heads| table.qkv.orders(heads));
            orders
                .map_err(in_arch)?
                .into_iter()
                .for_each(|(part, moved)| config.is_moved(part, moved));
        }
        config.set("architectures", json!([class]));
        // Blocks of any kind are widened to it, and it is the type of the KV cache.
        config.set("dtype", "bfloat16");
        config.set("eos_token_id", self.eos_token_ids()?);
        let (config, layout) = config.finish().map_err(in_arch)?;
        Ok(Translation { config, names: Names::new(table, layout) })
    }

    fn arch(&self) -> Result<&'static Arch, String> {
        if projector::is_projector(self) {
            let text = "it is a projector (mmproj), which goes with a model: give it as \
                        `settings.mmproj`, and the model's own file";
            return Err(text.to_owned());
        }
        match self.metadata.text("general.type")? {
            None | Some("model") => {}
            Some(other) => return Err(format!("the file is no model: {}", quoted(other))),
        }
        let name = self.metadata.text("general.architecture")?;
        let name = name.ok_or("general.architecture is missing")?;
        let all = || ARCHS.iter().chain(mamba1::ARCHS).chain(sparse::ARCHS);
        let known = || {
            let mut names: Vec<_> = all().map(|arch| arch.name).collect();
            names.sort_unstable();
            names.join(", ")
        };
        match all().find(|arch| arch.name == name) {
            Some(arch) => Ok(arch),
            None if ENCODERS.contains(&name) => Err(format!(
                "architecture {name} is an encoder: not supported in GGUF files; give `embed` the \
                 folder of the original model"
            )),
            None if EXPERTS.contains(&name) => {
                Err(format!("architecture {name} is a mixture of experts: not supported"))
            }
            None => Err(format!(
                "architecture {} is not supported in GGUF files; these are: {}",
                quoted(name),
                known()
            )),
        }
    }

    /// Ids that end a text: of a text, of a turn, of a message.
    fn eos_token_ids(&self) -> Result<Vec<u64>, String> {
        let mut ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            let id = self.metadata.unsigned(&format!("tokenizer.ggml.{key}"))?;
            ids.extend(id.filter(|id| !ids.contains(id)));
        }
        Ok(ids)
    }

    /// What its generation_config.json would say: newer files have the defaults of sampling.
    ///
    /// # Errors
    /// A value is of another type.
    pub fn generation_config(&self) -> Result<Map<String, Value>, String> {
        let mut found = Map::new();
        for (key, name) in [
            ("temp", "temperature"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ] {
            let value = self.metadata.float(&format!("general.sampling.{key}"))?;
            found.extend(value.map(|value| (name.to_owned(), value.into())));
        }
        let top_k = self.metadata.unsigned("general.sampling.top_k")?;
        found.extend(top_k.map(|top_k| ("top_k".to_owned(), top_k.into())));
        Ok(found)
    }
}

/// Heads that rows of q and k are counted by.
fn heads(config: &Config<'_>) -> Result<QkvHeads, String> {
    let heads = QkvHeads {
        num_heads: small(config.num_heads()?)?,
        num_kv_heads: small(config.num_kv_heads()?)?,
        head_dim: small(config.head_dim()?)?,
    };
    super::limits::check_heads(heads)?;
    match heads.num_kv_heads > 0 && heads.num_heads.is_multiple_of(heads.num_kv_heads) {
        true => Ok(heads),
        false => Err(format!(
            "{} attention heads cannot share {} key-value heads",
            heads.num_heads, heads.num_kv_heads
        )),
    }
}

/// A number of heads or their width, which rows are counted by.
fn small(number: u64) -> Result<usize, String> {
    let fits = usize::try_from(number).ok().filter(|number| *number <= 1 << 20);
    fits.ok_or_else(|| format!("{number} heads, or values of a head, are not supported"))
}

#[cfg(test)]
mod tests {
    use super::super::hf_config::HfConfig;
    use super::super::weights::gguf::written::{Written, text};
    use super::super::weights::gguf::{GgmlType, Gguf};
    use super::super::{decoder_spec, encoders};
    use super::*;

    const U32: u32 = 4;
    const F32: u32 = 6;
    const TEXT: u32 = 8;

    /// A model of this architecture with 12 layers, and what is added to it.
    fn described(
        arch: &str,
        more: impl Fn(Written, &dyn Fn(&str) -> String) -> Written,
    ) -> Described {
        let key = |name: &str| format!("{arch}.{name}");
        let mut written = Written::new().key("general.architecture", TEXT, &text(arch));
        for (name, size) in [
            ("block_count", 12u32),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 48),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            written = written.key(&key(name), U32, &size.to_le_bytes());
        }
        let eps = key("attention.layer_norm_rms_epsilon");
        written = written.key(&eps, F32, &1e-5f32.to_le_bytes());
        written = written.tensor("token_embd.weight", &[3, 32], GgmlType::F32, &[0; 384]);
        let Gguf { metadata, tensors } = Gguf::parse(&more(written, &key).bytes()).unwrap();
        let shapes = tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
        Described {
            metadata: metadata.into(),
            shapes,
            vectors: BTreeMap::new(),
            types: String::new(),
        }
    }

    fn refused(
        arch: &str,
        more: impl Fn(Written, &dyn Fn(&str) -> String) -> Written,
        wanted: &str,
    ) {
        let error = described(arch, more).translate().unwrap_err();
        assert!(error.contains(wanted), "{error}, not {wanted}");
    }

    fn number(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    #[test]
    fn metadata_is_a_config() {
        let file = described("llama", |written, _| {
            written
                .key("tokenizer.ggml.eos_token_id", U32, &number(2))
                .key("tokenizer.ggml.eot_token_id", U32, &number(7))
                .key("tokenizer.ggml.eom_token_id", U32, &number(2))
                .key("general.sampling.temp", F32, &0.7f32.to_le_bytes())
        });
        let config = Value::Object(file.translate().unwrap().config);
        for (key, value) in [
            ("architectures", json!(["LlamaForCausalLM"])),
            ("num_hidden_layers", json!(12)),
            ("vocab_size", json!(3)),
            ("head_dim", json!(8)),
            // Not 9.999999747378752e-06.
            ("rms_norm_eps", json!(1e-5)),
            ("tie_word_embeddings", json!(true)),
            ("rope_theta", json!(10_000.0)),
            ("dtype", json!("bfloat16")),
            ("eos_token_id", json!([2, 7])),
        ] {
            assert_eq!(config[key], value, "{key}");
        }
        assert_eq!(file.generation_config().unwrap()["temperature"], json!(0.7));
    }

    #[test]
    fn rows_of_heads_that_no_model_has_are_not_counted() {
        let more = |written: Written, key: &dyn Fn(&str) -> String| {
            written
                .key(&key("attention.key_length"), U32, &number(1 << 31))
                .key(&key("attention.value_length"), U32, &number(1 << 31))
                .tensor("blk.0.attn_qkv.weight", &[1, 32], GgmlType::F32, &[0; 128])
        };
        for arch in ["llama", "chatglm"] {
            refused(arch, more, "heads, or values of a head, are not supported");
        }
    }

    #[test]
    fn a_pooling_is_for_embed_alone() {
        let pooling = |written: Written, key: &dyn Fn(&str) -> String| {
            written.key(&key("pooling_type"), U32, &number(3))
        };
        let config = Value::Object(described("llama", pooling).translate().unwrap().config);
        assert_eq!(config[encoders::GGUF_POOLING], json!(3));
        let config = HfConfig::parse(&config.to_string(), "a.gguf").unwrap();
        let error = decoder_spec(&config).unwrap_err().to_string();
        assert!(error.contains("`pooling_type` is not known"), "{error}");
    }

    #[test]
    fn layers_slide_by_the_key_or_as_in_llama_cpp() {
        let types = |more: &dyn Fn(Written, &str) -> Written| {
            let file = described("gemma3", |written, key| {
                let window = key("attention.sliding_window");
                let pattern = key("attention.sliding_window_pattern");
                more(written.key(&window, U32, &number(8)), &pattern)
            });
            let config = Value::Object(file.translate().unwrap().config);
            let types = config["layer_types"].as_array().unwrap().clone();
            types.iter().map(|kind| kind == "sliding_attention").collect::<Vec<_>>()
        };
        let each = |last: usize| (1..=12).map(|layer| layer % last != 0).collect::<Vec<_>>();
        assert_eq!(types(&|written, _| written), each(6));
        assert_eq!(types(&|written, key| written.key(key, U32, &number(4))), each(4));
        let flags: Vec<Vec<u8>> = (0..12).map(|layer| vec![u8::from(layer < 3)]).collect();
        let listed: Vec<bool> = (0..12).map(|layer| layer < 3).collect();
        assert_eq!(types(&|written, key| written.array(key, 7, &flags)), listed);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let none = |written: Written, _: &dyn Fn(&str) -> String| written;
        refused("phimoe", none, "a mixture of experts");
        refused("rwkv7", none, "`rwkv7` is not supported in GGUF files; these are: afmoe,");
        let with = |name: &'static str, value: u32| {
            move |written: Written, key: &dyn Fn(&str) -> String| {
                written.key(&key(name), U32, &number(value))
            }
        };
        refused("qwen3", with("expert_count", 8), "a mixture of experts");
        refused("llama", with("expert_count", 8), "`llama.expert_used_count` is missing");
        refused("llama", with("wonder", 1), "metadata `llama.wonder` is not known");
        refused("llama", with("rope.dimension_sections", 1), "rope.dimension_sections");
        refused("qwen3", with("attention.value_length", 16), "no width of heads");
        refused("phi3", with("attention.scale", 1), "attention.scale");
        let sizes: Vec<Vec<u8>> = [8, 9].map(|size| number(size).to_vec()).into();
        let by_layer = |written: Written, key: &dyn Fn(&str) -> String| {
            written.array(&key("vocab_size2"), U32, &sizes)
        };
        refused("llama", by_layer, "vocab_size2");
        let softmax = |written: Written, key: &dyn Fn(&str) -> String| {
            ["expert_count", "expert_used_count", "expert_gating_func"]
                .into_iter()
                .fold(written, |written, name| written.key(&key(name), U32, &number(1)))
        };
        refused("glm4moe", softmax, "an expert_gating_func of 1 is not supported");
        let some = |written: Written, key: &dyn Fn(&str) -> String| {
            let sizes: Vec<Vec<u8>> = [0, 2].map(|size| number(size).to_vec()).into();
            written.array(&key("nextn_predict_layers"), U32, &sizes)
        };
        refused("llama", some, "differs between layers");
        let projector = |written: Written, _: &dyn Fn(&str) -> String| {
            written.key("general.type", TEXT, &text("mmproj"))
        };
        refused("llama", projector, "it is a projector (mmproj)");
        let scaling = |written: Written, key: &dyn Fn(&str) -> String| {
            written.key(&key("rope.scaling.type"), TEXT, &text("wild"))
        };
        refused("llama", scaling, "rope scaling `wild`");
    }

    /// Counts beside the usual ones.
    fn with_all<'a>(
        counts: &'a [(&'a str, u32)],
    ) -> impl Fn(Written, &dyn Fn(&str) -> String) -> Written + 'a {
        move |written, key| {
            counts.iter().fold(written, |written, (name, count)| {
                written.key(&key(name), U32, &number(*count))
            })
        }
    }

    #[test]
    fn sizes_that_rows_and_columns_are_moved_by_are_checked_first() {
        let net = |num_k, num_v, inner| {
            [
                ("ssm.group_count", num_k),
                ("ssm.time_step_rank", num_v),
                ("ssm.inner_size", inner),
                ("ssm.state_size", 8),
                ("ssm.conv_kernel", 4),
            ]
        };
        for (counts, wanted) in [
            (net(2, 0, 16), "value heads of linear attention"),
            (net(2, 3, 24), "3 value heads of linear attention cannot share 2"),
            (net(1, 1 << 31, 1 << 31), "number of value heads"),
            (net(2, 2, 0), "width of linear attention"),
        ] {
            for arch in ["qwen35", "qwen35moe", "qwen3next"] {
                let experts = [
                    ("expert_count", 4),
                    ("expert_used_count", 2),
                    ("expert_feed_forward_length", 8),
                ];
                let experts = if arch == "qwen35" { &[][..] } else { &experts[..] };
                refused(arch, with_all(&[&counts[..], experts].concat()), wanted);
            }
        }
        let further = [("nextn_predict_layers", 12)];
        refused("qwen35", with_all(&further), "12 of 12 layers predict further");
        let latent = |key, rope| {
            [
                ("attention.kv_lora_rank", 16),
                ("attention.key_length", key),
                ("attention.value_length", 16),
                ("attention.key_length_mla", 24),
                ("attention.value_length_mla", 8),
                ("rope.dimension_count", rope),
            ]
        };
        refused("deepseek2", with_all(&latent(99, 8)), "heads of 99 and 16 over latents of 16");
        refused("deepseek2", with_all(&latent(40, 24)), "24 of 24 values of a head turn");
        let widths = ["", "_swa"]
            .map(|of| [format!("attention.key_length{of}"), format!("attention.value_length{of}")]);
        let widths: Vec<_> = widths.iter().flatten().map(|name| (name.as_str(), 8)).collect();
        let gemma: Vec<_> = widths.into_iter().chain([("attention.sliding_window", 4)]).collect();
        refused("gemma4", with_all(&gemma), "rope_freqs.weight is missing");
        refused("mamba2", with_all(&net(1, 3, 16)), "16 values of a scan are not those of 3 heads");
        refused("mamba2", with_all(&net(1, 3, 48)), "a scan of 48 beside a stream of 32");
    }
}
